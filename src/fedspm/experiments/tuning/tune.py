"""Tuning: train every trial of every method on the grid runner, and choose by validation rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedspm.base.errors import FedSPMError
from fedspm.base.files import sha256
from fedspm.base.layers import assignments, dotted, merged
from fedspm.experiments.cell import Cell
from fedspm.experiments.comparison import require_different, row_settings
from fedspm.experiments.grid import Unfinished, run_grid
from fedspm.experiments.grid_progress import SILENT, Progress
from fedspm.experiments.statistics import ACCURACIES, Seeds, spread
from fedspm.experiments.tuning.page import write_page
from fedspm.experiments.tuning.search import searches
from fedspm.experiments.tuning.space import USUAL, Space, Trial, of_method, require_space
from fedspm.runs.config import Config, resolve
from fedspm.runs.folder import Run

METHODS = ("fedavg", "feddrm", "fedspm-1x")
FIRST_SEED = 100  # lower ones are for reporting
HELD_OUT = 0.2
FAILED = -1.0  # worse than any accuracy
FROM_PYTHON = "fedspm.experiments.tune(…)"


def typed(trial: Trial) -> str:
    """A trial as it is typed after `--set`."""
    return ", ".join(assignments(dotted(trial)))


@dataclass(frozen=True)
class Outcome:
    """What a trial of a method reached on validation rows, by seed, and its metrics over rounds; nothing of a seed
    whose training failed."""

    row: str
    trial: Trial
    seeds: Sequence[int]
    scores: Seeds
    curves: Mapping[int, Sequence[Mapping[str, Any]]]

    @property
    def score(self) -> float:
        """The mean over seeds; a trial that failed with one of them is worse than any other."""
        return spread(self.scores)[0] if len(self.scores) == len(self.seeds) else FAILED

    @property
    def settings(self) -> str:
        """As it is typed after `--set`."""
        return typed(self.trial)


@dataclass(frozen=True)
class Tuning:
    """All trials so far, and what was chosen for every method that has one; `failed` says which trainings failed."""

    metric: str
    spaces: Mapping[str, Space]
    outcomes: Sequence[Outcome]
    failed: str = ""

    def of(self, row: str) -> list[Outcome]:
        """The trials of a method, the best first."""
        return sorted((each for each in self.outcomes if each.row == row), key=lambda each: -each.score)

    @property
    def chosen(self) -> dict[str, Trial]:
        best = {row: self.of(row)[:1] for row in self.spaces}
        return {row: each[0].trial for row, each in best.items() if each and each[0].score > FAILED}

    def at_the_edge(self, row: str) -> list[str]:
        """Keys whose chosen value is the lowest or the highest number that was tried: the best may lie beyond."""
        chosen, tried = self.chosen.get(row, {}), [each.trial for each in self.of(row)]
        found = []
        for key, value in chosen.items():
            values = {trial[key] for trial in tried}
            if isinstance(value, int | float) and not isinstance(value, bool) and len(values) > 1:
                found += [key] if value in (min(values), max(values)) else []
        return found


@dataclass
class _Trials:
    """The trials that were begun, in the order in which they were proposed."""

    settings: Mapping[str, Any]
    seeds: Sequence[int]
    folder: Path
    begun: list[tuple[str, Trial, list[Cell]]] = field(default_factory=list)

    def begin(self, row: str, trial: Trial) -> None:
        name = sha256(repr(sorted(assignments(dotted(trial)))).encode())[:10]
        folders = {seed: self.folder / "runs" / f"{row}-{name}-seed{seed}" for seed in self.seeds}
        cells = [
            Cell(row, self.config(row, trial, seed), folder, panel=typed(trial)) for seed, folder in folders.items()
        ]
        self.begun.append((row, trial, cells))

    def config(self, row: str, trial: Trial, seed: int) -> Config:
        return resolve(self.settings, row_settings(row), dotted(trial), {"seed": seed})

    def outcomes(self, metric: str) -> list[Outcome]:
        """What is finished; a trial of which nothing is finished yet is not there."""
        found = []
        for row, trial, cells in self.begun:
            curves = {cell.config.seed: Run.open(cell.folder).metrics() for cell in cells if cell.finished()}
            scores = {seed: curve[-1][metric] for seed, curve in curves.items()}
            if scores:
                found.append(Outcome(row, trial, self.seeds, scores, curves))
        return found


def tune(
    algorithms: Sequence[str] = METHODS,
    settings: Mapping[str, Any] | None = None,
    space: Space = USUAL,
    *,
    search: str = "grid",
    trials: int | None = None,
    metric: str = "system",
    seeds: Sequence[int] = (FIRST_SEED,),
    out: Path | str = "runs/tune",
    jobs: int | None = None,
    progress: Progress = SILENT,
    command: str = FROM_PYTHON,
) -> Tuning:
    """Train trials of every method with every seed, and choose for each the settings with the highest accuracy on
    validation rows, which are a part of the training rows; the test rows are not looked at.

    `space` says what may vary: by key a tuple of values, or a `Range` (for random and tpe). Every method has the same
    budget: all combinations (`grid`), or `trials` of them (`random`, `tpe`); settings that a method does not have are
    left out for it. `metric` is system, average or routing. Everything else is as in `fedspm.experiments.compare`.
    """
    if metric not in ACCURACIES:
        raise FedSPMError(f"there is no metric {metric!r}; known are {', '.join(ACCURACIES)}")
    if low := [seed for seed in require_different("seeds", seeds) if seed < FIRST_SEED]:
        raise FedSPMError(f"seed {low[0]}: seeds below {FIRST_SEED} are for reporting; tune with others")
    base = merged({"data": {"validation_fraction": HELD_OUT}}, settings or {})
    if taken := {"seed", "algorithm", "variant"} & base.keys():
        raise FedSPMError(f"{min(taken)} is what the tuning goes through; use --seeds and --algorithms instead")
    if not resolve(base).data.validation_fraction:
        raise FedSPMError("data.validation_fraction = 0: settings are chosen on validation rows; hold some out")
    require_space(space, base)
    spaces = {row: of_method(space, row) for row in require_different("algorithms", algorithms)}
    folder, ask = Path(out), searches(search, spaces, trials)
    started, failures = _Trials(base, seeds, folder), dict[str, None]()

    def write() -> Tuning:
        found = Tuning(metric, spaces, started.outcomes(ACCURACIES[metric]), "; ".join(failures))
        write_page(folder, found, command)
        return found

    result = Tuning(metric, spaces, [])
    while wave := [(row, trial) for row, each in ask.items() for trial in each.propose()]:
        first = len(started.begun)
        for row, trial in wave:
            started.begin(row, trial)
        cells = [cell for _, _, cells in started.begun[first:] for cell in cells]
        try:
            result = run_grid(cells, cells, write, jobs=jobs, command=command, progress=progress)
        except Unfinished as error:
            if error.interrupted:
                raise
            failures[str(error)] = None  # a trial that diverges is a result
            result = write()
        scored = {(each.row, each.settings): each.score for each in result.outcomes}
        for row, trial in wave:
            score = scored.get((row, typed(trial)), FAILED)
            ask[row].learn(trial, score if math.isfinite(score) else FAILED)
    if missing := [row for row in spaces if row not in result.chosen]:
        raise Unfinished(f"no trial of {', '.join(missing)} was finished: {result.failed}", result)
    return result
