"""Would a training with these settings take its data? Everything that is wrong, before anything is trained."""

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.data.catalog import heart
from fedspm.data.catalog.heart import HEART
from fedspm.data.check import Findings, inspect, inspect_draft
from fedspm.data.settings import OWN
from fedspm.federated.task import Task
from fedspm.runs.config import Config


def check_data(config: Config) -> Findings:
    """What a training would see, and what is wrong with it: with one's own data, or with what the method needs."""
    data = config.data
    draft = data.own() if data.name == OWN else None
    if data.name == HEART.name:
        draft = heart.draft(HEART.load(data.path))
    if draft is not None:
        if unknown := draft.leave_out(data.without):
            draft.problems.append(f"there is no client {unknown[0]!r}; the clients are {', '.join(draft.train)}")
        findings = inspect_draft(draft, data.test_fraction, config.seed, data.validation_fraction, config.min_count)
    else:
        findings = inspect(config.federation(), f"the data set {data.name}, divided over clients", config.min_count)
    if not findings.problems:
        _try_method(config, findings)
    return findings


def _try_method(config: Config, findings: Findings) -> None:
    """The method may need more rows, or other networks."""
    counts = tuple(client["train"] for client in findings.clients.values())
    task = Task.of_manifest({**vars(findings), "counts": counts})
    try:
        build_algorithm(config, task)
    except FedSPMError as error:
        findings.problems.append(str(error))
