"""`fedspm federation preview`: what a run would take from a site, before anything leaves it.

The steps of the run are taken here, on rows of this site that play all sites, with one local step a round: nothing is
sent, and the sizes of what would be are those of the replies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.data.part import Part
from fedspm.data.tables.agree import agreed_schema
from fedspm.engines.flower.contract import SiteConfig, broken_terms, planned_steps, require_willing
from fedspm.engines.flower.ledger import Entry, Ledger, separation_spent
from fedspm.engines.flower.site_data import SiteRows, load_rows
from fedspm.engines.watched import WatchedExchange
from fedspm.federated.accountant import gaussian_epsilon, separation
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.runs.config import Config

WHEN = {"start": "at the start", "round": "in each round", "evaluation": "evaluation", "after training": "at the end"}
ROWS = 64  # of the site, which play every site in the rehearsal


@dataclass(frozen=True)
class PreviewedStep:
    """What one step of a run would take from a site, in one reply."""

    step: str
    when: str
    times: int  # replies in the whole run
    tensors: dict[str, tuple[tuple[int, ...], str]]  # by name: the shape, and what it is
    bytes: int
    noised: bool

    def by_kind(self) -> dict[str, tuple[int, str]]:
        """How many numbers leave in one reply and what they are, by the first part of the tensors' names."""
        found: dict[str, tuple[int, str]] = {}
        for name, (shape, meaning) in self.tensors.items():
            kind = name.split(".", maxsplit=1)[0]
            found[kind] = (found.get(kind, (0, ""))[0] + math.prod(shape), meaning)
        return found


@dataclass(frozen=True)
class Preview:
    """What a run would take from a site, and whether the site would let it."""

    site: str
    steps: list[PreviewedStep]
    epsilon: float | None  # of this run alone; None if it has no noise
    epsilon_after: float | None  # of all runs of the site, this one included; None if anything left without noise
    delta: float
    refused: list[str]  # why the site would take no part; empty if it would

    @property
    def bytes(self) -> int:
        return sum(step.times * step.bytes for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        steps = [
            vars(each) | {"tensors": {name: list(shape) for name, (shape, _) in each.tensors.items()}}
            for each in self.steps
        ]
        return vars(self) | {"steps": steps, "bytes": self.bytes, "accepted": not self.refused}


def preview(site: SiteConfig, config: Config) -> Preview:
    """What the run of a configuration would take from a site. How many rows the other sites have is not known here:
    they are taken to have as many as this one."""
    names = config.sites.names or (site.name,)
    if site.name not in names:
        names = (*names, site.name)
    rows, settings = load_rows(site.rows), config.alone()
    told = rows.summaries(site.min_count)
    schema = agreed_schema({site.name: told}) if told else None  # as if the others had the same levels
    shape = (len(schema.features),) if schema else rows.shape
    task = Task(shape, len(rows.classes), tuple(names), (len(rows.train),) * len(names), schema)
    entries, refused = Ledger(site.state).entries(), list[str]()
    try:
        require_willing(site, settings, list(config.sites.names))
    except FedSPMError as error:
        refused.append(str(error))
    allowed = {"encoders": site.encoders, "algorithms": site.algorithms, "transforms": site.transforms}
    if any(code.name not in allowed[code.kind] for code in config.outside_code if code.kind in allowed):
        return Preview(site.name, [], None, None, site.delta, refused)  # run.toml may be anybody's: nothing is imported
    try:
        algorithm = build_algorithm(settings, task)
    except FedSPMError as error:
        return Preview(site.name, [], None, None, site.delta, [*refused, str(error)])
    refused += broken_terms(site, algorithm, len(rows.train), entries)
    evaluations = sum(
        number % config.eval_every == 0 or number == config.rounds for number in range(1, config.rounds + 1)
    )
    planned = planned_steps(algorithm, names.index(site.name), evaluations)
    sent = _rehearsed(settings, task, rows, [each.step.name for each in planned])
    steps = []
    for each in planned:
        tensors = sent.get(each.step.name, {})
        kinds = {name: upload.phrase for name in tensors if (upload := each.step.upload(name))}
        shapes = {name: (tuple(value.shape), kinds.get(name, "")) for name, value in tensors.items()}
        size = sum(value.nbytes for value in tensors.values())
        steps.append(PreviewedStep(each.step.name, each.step.when, each.times, shapes, size, each.noised > 0))
    own = (
        separation(settings.privacy.noise, sum(each.times * each.noised for each in planned))
        if (settings.privacy.noise)
        else None
    )
    return Preview(
        site.name,
        steps,
        None if own is None else gaussian_epsilon(own**0.5, site.delta),
        _after(entries, own, site.delta),
        site.delta,
        refused,
    )


def _after(entries: list[Entry], own: float | None, delta: float) -> float | None:
    if own is None or any(entry.bytes and not entry.noise for entry in entries):
        return None
    return gaussian_epsilon((separation_spent(entries) + own) ** 0.5, delta)


def _rehearsed(settings: Settings, task: Task, rows: SiteRows, steps: Sequence[str]) -> dict[str, Tensors]:
    """The tensors of one reply to every step of a run, taken here."""
    short = {role: getattr(settings, role) for role in ("predictor", "router")}
    short = {role: block.model_copy(update={"steps": min(1, block.steps)}) for role, block in short.items()}
    algorithm = build_algorithm(settings.model_copy(update=short), task)
    train, test = rows.encoded(np.asarray(rows.classes), task.schema)
    parts = {"train": train, "test": test if len(test) else train}
    few = {kind: Part(part.x[:ROWS], part.y[:ROWS]) for kind, part in parts.items()}
    exchange = WatchedExchange(algorithm, dict.fromkeys(task.names, few))
    shared = algorithm.prepared(algorithm.server_round(algorithm.start(exchange), exchange), exchange)
    for name in steps:
        if name not in {each.step for each in exchange.seen}:
            exchange(getattr(algorithm, name), shared)
    return {each.step: each.sent for each in exchange.seen}
