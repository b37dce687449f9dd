"""How many components: held-out log-likelihood over C (docs/likelihood.md says how far to trust it)."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedspm.algorithms import algorithm_named
from fedspm.comparison import markdown_table, numbers, paired_difference, spread
from fedspm.config import merged, resolve
from fedspm.errors import FedSPMError
from fedspm.files import write_atomically
from fedspm.grid import Cell
from fedspm.pictures import components_chosen, rendered
from fedspm.runs import Run

SCORE = "predictive_log_likelihood"
HELD_OUT = 0.25
HEADINGS = ("C", "held-out log-likelihood", "behind the best", "average accuracy")
Scores = dict[int, dict[int, float]]  # by C, by seed


def choice_cells(settings: Mapping[str, Any], components: str, seeds: str, folder: Path) -> list[Cell]:
    """A training for every C and seed, evaluated on a part of the training rows; the test rows are not looked at."""
    cells = []
    for seed in numbers("--seeds", seeds):
        for count in numbers("--components", components):
            chosen = {"components": count, "seed": seed}
            held = {"data": {"validation_fraction": HELD_OUT}}
            config = resolve(merged(held, settings, chosen))
            if not algorithm_named(config.algorithm).routes:
                raise FedSPMError(f"{config.algorithm} has no model of x; choose C for fedspm or fedgmm")
            cells.append(Cell(f"C={count}", config, folder / "runs" / f"c{count}-seed{seed}"))
    return cells


def scores(cells: Sequence[Cell], metric: str = SCORE) -> Scores:
    found: Scores = {}
    for cell in cells:
        if cell.finished():
            last = Run.open(cell.folder).last_metrics()
            found.setdefault(cell.config.components, {})[cell.config.seed] = last[metric]
    return dict(sorted(found.items()))


def best_count(found: Scores) -> int:
    return max(found, key=lambda count: statistics.mean(found[count].values()))


def choice_rows(cells: Sequence[Cell]) -> list[list[str]]:
    """Means over seeds, and how far behind the best, paired by seed with its 95 % interval."""
    found, accuracy = scores(cells), scores(cells, "average_accuracy")
    top = found[best_count(found)]
    rows = []
    for count, by_seed in found.items():
        behind = paired_difference(by_seed, top)
        text = "best" if by_seed is top else "–"
        if behind and by_seed is not top:
            text = f"{behind[0]:+.4f}" + ("" if behind[1] is None else f" ± {behind[1]:.4f}")
        rows.append([str(count), f"{spread(by_seed)[0]:.4f}", text, f"{spread(accuracy[count])[0]:.4f}"])
    return rows


def write_choice(folder: Path, cells: Sequence[Cell], command: str) -> None:
    """components.md, components.svg and components.png of all cells that are finished."""
    if not (found := scores(cells)):
        return
    table = markdown_table(HEADINGS, choice_rows(cells))
    page = ["# How many components", "", f"`{command}`", "", *table, "", "![over C](components.png)", ""]
    write_atomically(folder / "components.md", "\n".join(page))
    for kind in ("svg", "png"):
        write_atomically(folder / f"components.{kind}", rendered(components_chosen(found), kind))
