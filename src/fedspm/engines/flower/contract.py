"""The contract of a site, site.toml: what it is called, where its rows are, and what it is willing to do.

A run that breaks the contract is refused when the site is asked to join it, with a sentence that names the key; budgets
over all runs of the site are looked at again with every request, against its ledger (`fedspm.engines.flower.ledger`).
"""

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from fedspm.base.errors import FedSPMError, Refused
from fedspm.base.plugins import ENCODERS
from fedspm.base.schema import Strict, problem
from fedspm.engines.flower.ledger import Entry, rounds_answered, separation_spent, starts_answered
from fedspm.engines.flower.site_data import is_function
from fedspm.federated.accountant import gaussian_epsilon, separation
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.settings import Block, Settings
from fedspm.federated.steps import Step
from fedspm.nn.row_inversion import layers_on_rows

HIDING = 1.0  # privacy.noise, in units of the longest update


class SiteConfig(Strict):
    """site.toml: what a site is called, where its rows are, and what it is willing to do."""

    name: str = Field(min_length=1, description="how the others call this site")
    rows: str = Field(description="its rows: a safetensors file, or package.module:function (docs/deploy.md)")
    state: Path = Field(description="folder of its private state")
    algorithms: tuple[str, ...] = Field(("fedspm",), description="what may be trained here")
    encoders: tuple[str, ...] = Field(ENCODERS, description="encoders that the server may ask for")
    transforms: tuple[str, ...] = Field((), description="transforms of plugins that a run may use")
    min_count: int = Field(10, ge=1, description="no sum over fewer rows than this leaves, whatever the server asks")
    min_noise: float = Field(0.0, ge=0, description="no part in a run with a smaller privacy.noise")
    min_batch: int = Field(16, ge=1, description="no part in a run whose local steps have fewer rows")
    min_steps: int = Field(5, ge=1, description="no part in a run with fewer local steps a round")
    min_learning_rate: float = Field(1e-5, ge=0, description="no part in a run with a smaller learning rate")
    max_learning_rate: float = Field(0.1, gt=0, description="no part in a run with a larger learning rate")
    max_rounds: int = Field(2000, ge=1, description="rounds that this site answers, in all runs together")
    max_starts: int = Field(10, ge=0, description="runs whose start gets sums of this site without noise, altogether")
    max_epsilon: Annotated[float, Field(gt=0)] | None = Field(
        None, description="ε of all runs together; if it is set, no part in a run without privacy.noise"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="δ at which max_epsilon holds")
    show_no_row: bool = Field(
        True, description="no part in a run whose updates may show rows; keep back an update from which one can be read"
    )
    device: str = Field("auto", description="auto, cpu, cuda, mps")

    @classmethod
    def read(cls, path: Path) -> "SiteConfig":
        """Paths in the file are taken from where the file is."""
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
            config = cls.model_validate(values)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FedSPMError(f"{path} cannot be read: {error}") from error
        except ValidationError as error:
            raise FedSPMError(f"{path}: {problem(error, cls)}") from error
        places: dict[str, Any] = {"state": (path.parent / config.state).resolve()}
        if not is_function(config.rows):
            places["rows"] = str((path.parent / config.rows).resolve())
        return config.model_copy(update=places)


# -- what a run would ask for ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A step that a run asks a site for, how often, and how many noised vectors leave with it each time."""

    step: Step
    times: int
    noised: int


def planned_steps(algorithm: Algorithm, client: int, evaluations: int = 0) -> list[Planned]:
    """What a run asks one of its sites for, in the order of the declarations; rounds that are repeated come on top."""
    settings = algorithm.settings
    rounds = sum(client in algorithm.participants(number) for number in range(settings.rounds))
    often = {"start": 1, "round": rounds, "evaluation": evaluations, "after training": 1}
    found = []
    for step in algorithm.steps_in_use().values():
        if not step.in_process_only:
            times = step.times(algorithm) if callable(step.times) else step.times
            noised = step.most_noised(step.uploads, settings.components) if settings.privacy.noise else 0
            found.append(Planned(step, times * often[step.when], noised))
    return found


# -- what a site refuses ---------------------------------------------------------------------------------------------


def require_willing(config: SiteConfig, settings: Settings, names: list[str]) -> None:
    """Refuse a run by its settings alone, before anything is made of them."""
    if settings.algorithm not in config.algorithms:
        known = ", ".join(config.algorithms)
        raise Refused(f"this site is configured for {known}, not for {settings.algorithm!r} (algorithms)")
    for role in ("predictor", "router"):
        if (encoder := getattr(settings, role).encoder) not in config.encoders:
            raise Refused(f"this site is not configured for the {role} encoder {encoder!r} (encoders)")
    if others := [name for name in settings.wire.transforms if name not in config.transforms]:
        raise Refused(f"this site is not configured for the transform {others[0]!r} of wire.transforms (transforms)")
    if settings.min_count < config.min_count:
        raise Refused(
            f"the server asks for sums over {settings.min_count} rows, this site's min_count is {config.min_count}"
        )
    if settings.privacy.noise < config.min_noise:
        raise Refused(
            f"the run has privacy.noise = {settings.privacy.noise:g}, this site's min_noise is {config.min_noise:g}"
        )
    if config.max_epsilon is not None and not settings.privacy.noise:
        raise Refused(f"the run has no privacy.noise, and this site has a budget: max_epsilon = {config.max_epsilon:g}")
    if config.name not in names:
        raise Refused(f"{config.name!r} is not one of the sites of this run")


def broken_terms(config: SiteConfig, algorithm: Algorithm, rows: int, entries: list[Entry]) -> Iterator[str]:
    """Why a run would give rows away, or more than is left of the budgets: a sentence for every key. A block without
    steps sends what it got, and breaks nothing."""
    settings, own = algorithm.settings, f"site {config.name!r}"
    for role in sorted({encoder.role for encoder in algorithm.encoders}):
        block: Block = getattr(settings, role)
        if not block.steps:
            continue
        rate = algorithm.learning_rate(role)
        for wrong, found, what, key in (
            (block.batch_size < config.min_batch, f"{role}.batch_size = {block.batch_size}", "small", "min_batch"),
            (rows < config.min_batch, f"batches of this site's {rows} rows", "few", "min_batch"),
            (block.steps < config.min_steps, f"{role}.steps = {block.steps}", "few", "min_steps"),
            (rate < config.min_learning_rate, f"{role}.learning_rate = {rate:g}", "small", "min_learning_rate"),
            (rate > config.max_learning_rate, f"{role}.learning_rate = {rate:g}", "large", "max_learning_rate"),
        ):
            if wrong:
                yield f"the run has {found}, too {what} for {own}, whose {key} is {getattr(config, key):g}"
    if config.show_no_row and not (settings.privacy.withhold_rows or hides_rows(settings)):
        shown = "a first layer of the run sees rows themselves, and its updates" if _sees_rows(algorithm) else ""
        shown = shown or ("differences of the sums that the run's start asks for" if _sums_differ(algorithm) else "")
        if shown:
            yield f"{shown} may show rows: {own} has show_no_row = true; set privacy.withhold_rows = true in the run"
    planned = planned_steps(algorithm, algorithm.task.names.index(config.name))
    rounds = max((each.times for each in planned if each.step.when == "round"), default=0)
    if (answered := rounds_answered(entries)) + rounds > config.max_rounds:
        yield (
            f"the run has {rounds} rounds for {own}, which has answered {answered} of its max_rounds = "
            f"{config.max_rounds} in all runs"
        )
    if any(each.step.when == "start" and each.step.uploads and not each.noised for each in planned) and (
        not settings.privacy.noise and len(starts_answered(entries)) >= config.max_starts
    ):
        yield f"{own} has answered the start of {config.max_starts} runs without noise, its max_starts"
    noised = sum(each.times * each.noised for each in planned)
    if (too_much := _beyond_budget(config, entries, settings.privacy.noise, noised)) is not None:
        yield f"after the run ε would be {too_much}"


def hides_rows(settings: Settings) -> bool:
    """Is there so much noise that no row can be read from an update, whatever else it hides? The server chooses how
    much there is, and a millionth of the clip hides nothing."""
    return settings.privacy.noise >= HIDING


def _sees_rows(algorithm: Algorithm) -> bool:
    """Has any encoder that is trained a linear layer on the rows themselves?"""
    features = math.prod(algorithm.task.shape)
    trained = [encoder for encoder in algorithm.encoders if getattr(algorithm.settings, encoder.role).steps]
    return any(layers_on_rows(encoder.initial(), features) for encoder in trained)


def _sums_differ(algorithm: Algorithm) -> bool:
    """Is any step of the start asked more than once for sums without noise, with contents that the server chooses?"""
    steps = [step for step in algorithm.steps_in_use().values() if step.when == "start" and step.exact]
    return any(step.most_times(algorithm) > 1 for step in steps)


def require_budget(config: SiteConfig, entries: list[Entry], entry: Entry) -> None:
    """Refuse a request whose answer would be more than the budgets over all runs allow."""
    with_it = [*entries, entry]
    if entry.when == "round" and rounds_answered(with_it) > config.max_rounds:
        raise Refused(f"this site has answered its max_rounds = {config.max_rounds} rounds, in all runs together")
    if len(starts_answered(with_it)) > config.max_starts and entry.run not in starts_answered(entries):
        raise Refused(f"this site has answered the start of its max_starts = {config.max_starts} runs without noise")
    if (too_much := _beyond_budget(config, entries, entry.noise, entry.noised)) is not None:
        raise Refused(f"with this reply ε would be {too_much}")


def _beyond_budget(config: SiteConfig, entries: list[Entry], noise: float, count: int) -> str | None:
    if config.max_epsilon is None or not noise:
        return None
    mu = (separation_spent(entries) + separation(noise, count)) ** 0.5
    if (epsilon := gaussian_epsilon(mu, config.delta)) <= config.max_epsilon:
        return None
    return (
        f"{epsilon:.4g} at δ = {config.delta:g} in all runs together, more than the max_epsilon of site "
        f"{config.name!r}, {config.max_epsilon:g}"
    )
