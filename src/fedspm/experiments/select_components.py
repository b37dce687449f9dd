"""How many components: held-out log-likelihood over C (docs/likelihood.md says how far to trust it)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspm.algorithms import algorithm_named
from fedspm.base.errors import FedSPMError
from fedspm.base.files import write_atomically
from fedspm.base.layers import merged
from fedspm.experiments.cell import Cell
from fedspm.experiments.comparison import require_different
from fedspm.experiments.grid import run_grid
from fedspm.experiments.grid_progress import SILENT, Progress
from fedspm.experiments.statistics import paired_difference, spread, with_most_seeds
from fedspm.experiments.tables import markdown_table
from fedspm.report.figures import over_values, rendered
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run

SCORE = "predictive_log_likelihood"
HELD_OUT = 0.25
HEADINGS = ("C", "held-out log-likelihood", "behind the best", "average accuracy")
BEST = "best"
FROM_PYTHON = "fedspm.experiments.choose_components(…)"


def choose_components(
    counts: Sequence[int] = (1, 2, 3, 4, 5),
    settings: Mapping[str, Any] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    out: Path | str = "runs/choose",
    jobs: int | None = None,
    progress: Progress = SILENT,
    command: str = FROM_PYTHON,
) -> "Choice":
    """Train every number of components with every seed, and compare the likelihood of rows that were held out.

    The parameters are those of `fedspm.experiments.compare`.
    """
    cells = choice_cells(settings or {}, counts, seeds, Path(out))
    return run_grid(
        cells, cells, lambda: write_choice(Path(out), cells, command), jobs=jobs, command=command, progress=progress
    )


@dataclass(frozen=True)
class Choice:
    """The rows of the table so far, and the number of components with the highest likelihood; None without any."""

    rows: list[list[str]]
    best: int | None


def choice_cells(settings: Mapping[str, Any], counts: Sequence[int], seeds: Sequence[int], folder: Path) -> list[Cell]:
    """A training for every C and seed, evaluated on a part of the training rows; the test rows are not looked at."""
    cells = []
    for seed in require_different("seeds", seeds):
        for count in require_different("components", counts):
            chosen = {"components": count, "seed": seed}
            held = {"data": {"validation_fraction": HELD_OUT}}
            config = resolve(merged(held, settings, chosen))
            method = algorithm_named(config.algorithm)
            if not (method.routes and method.has_components):
                lacks = "components" if method.routes else "model of x"
                raise FedSPMError(f"{config.algorithm} has no {lacks}; choose C for fedspm or fedgmm")
            cells.append(Cell(f"C={count}", config, folder / "runs" / f"c{count}-seed{seed}"))
    return cells


def scores(lines: Mapping[int, Mapping[int, Mapping[str, Any]]], metric: str) -> dict[int, dict[int, float]]:
    """A metric by C and seed."""
    return {count: {seed: line[metric] for seed, line in seeds.items()} for count, seeds in lines.items()}


def choice_rows(lines: Mapping[int, Mapping[int, Mapping[str, Any]]]) -> list[list[str]]:
    """Means over seeds, and how far behind the best, paired by seed with its 95 % interval."""
    found, accuracy = scores(lines, SCORE), scores(lines, "average_accuracy")
    top = max(with_most_seeds(found), key=lambda count: spread(found[count])[0])
    rows = []
    for count, by_seed in found.items():
        behind = paired_difference(by_seed, found[top])
        text = BEST if count == top else "–"
        if behind and count != top:
            text = f"{behind[0]:+.4f}" + ("" if behind[1] is None else f" ± {behind[1]:.4f}")
        rows.append([str(count), f"{spread(by_seed)[0]:.4f}", text, f"{spread(accuracy[count])[0]:.4f}"])
    return rows


def write_choice(folder: Path, cells: Sequence[Cell], command: str) -> Choice:
    """components.md, components.svg and components.png of all cells that are finished."""
    lines: dict[int, dict[int, dict[str, Any]]] = {}
    missing = []
    for cell in sorted(cells, key=lambda cell: cell.config.components):
        if not cell.finished():
            missing.append(cell.name)
        else:
            lines.setdefault(cell.config.components, {})[cell.config.seed] = Run.open(cell.folder).last_metrics()
    if not lines:
        return Choice([], None)
    rows = choice_rows(lines)
    table = markdown_table(HEADINGS, rows)
    page = ["# How many components", "", f"`{command}`", "", *table, "", "![over C](components.png)", ""]
    if missing:
        page += [f"Not finished: {', '.join(missing)}.", ""]
    write_atomically(folder / "components.md", "\n".join(page))
    found = {str(count): by_seed for count, by_seed in scores(lines, SCORE).items()}
    figure = over_values("components C", "held-out log-likelihood a row", {"": found})
    for kind in ("svg", "png"):
        write_atomically(folder / f"components.{kind}", rendered(figure, kind))
    return Choice(rows, next(int(row[0]) for row in rows if BEST in row))
