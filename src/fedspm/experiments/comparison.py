"""`fedspm compare`: methods over seeds on the same data, and the tables that compare them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedspm.algorithms import BASELINES, algorithm_named
from fedspm.base.errors import FedSPMError
from fedspm.base.files import write_atomically
from fedspm.experiments.cell import Cell
from fedspm.experiments.federate import METHODS, Row, baseline_rows, learn_baselines, method_row, page, sentences
from fedspm.experiments.grid import run_grid
from fedspm.experiments.grid_progress import SILENT, Progress
from fedspm.experiments.statistics import Method
from fedspm.experiments.tables import latex, markdown, spreadsheet
from fedspm.experiments.training_record import method_rows, record, record_lines
from fedspm.report.figures import comparison_curves, rendered
from fedspm.runs.config import resolve

FROM_PYTHON = "fedspm.experiments.compare(…)"
Value = TypeVar("Value", str, int)


def compare(
    algorithms: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    out: Path | str = "runs/compare",
    jobs: int | None = None,
    progress: Progress = SILENT,
    command: str = FROM_PYTHON,
    baselines: bool = False,
) -> "Comparison":
    """Train methods on the same data from the same start, one run folder per method and seed, and write the tables.

    `algorithms` are names as in `fedspm compare --algorithms`; None is the paper's table. `settings` are nested tables,
    as in a configuration file. `jobs` trainings run at a time, one per core if it is None. What is finished in `out` is
    not trained again. `command` is what the tables say made them. With `baselines` scikit-learn's learners are compared
    as well, each client alone and pooled: should I federate? None is then local, FedAvg, FedDRM and FedSPM.
    """
    usual = METHODS if baselines else paper_rows()
    cells = comparison_cells(settings or {}, usual if algorithms is None else algorithms, seeds, Path(out))
    return run_grid(
        cells,
        slowest_first(cells),
        lambda: write_comparison(Path(out), cells, command, baselines),
        jobs=jobs,
        command=command,
        progress=progress,
    )


def comparison_cells(
    settings: Mapping[str, Any], rows: Sequence[str], seeds: Sequence[int], folder: Path
) -> list[Cell]:
    """Every method with every seed, as run folders below `folder`; an option goes to the methods that have it."""
    if taken := {"seed", "algorithm", "variant"} & settings.keys():
        raise FedSPMError(f"{min(taken)} is what is compared; use --seeds and --algorithms instead")
    given = settings.get("options", {})
    options = {row: _options_of(row, given) for row in require_different("algorithms", rows)}
    if unknown := [key for key in given if not any(key in known for known in options.values())]:
        raise FedSPMError(f"options.{unknown[0]}: none of {', '.join(options)} has such an option")
    cells = []
    for seed in require_different("seeds", seeds):
        for row, known in options.items():
            config = resolve({**settings, "options": known}, row_settings(row), {"seed": seed})
            config.checked_options(algorithm_named(config.algorithm).Options)
            cells.append(Cell(row, config, folder / "runs" / f"{row}-seed{seed}"))
    return cells


def require_different(what: str, values: Sequence[Value]) -> Sequence[Value]:
    """The same values: two of a kind would train in the same folder."""
    if not values or len(set(values)) < len(values):
        raise FedSPMError(f"{what} are {list(values)}; give at least one, and each only once")
    return values


def paper_rows() -> list[str]:
    """The rows of the paper's table: the nine baselines, and FedSPM with shared encoders and with C of them."""
    return [*BASELINES, "fedspm-1x", "fedspm-cx"]


def row_settings(row: str) -> dict[str, str]:
    """The settings of a row of a table: the name of a method, with -1x or -cx where it has variants."""
    algorithm, _, variant = row.rpartition("-") if row.endswith(("-1x", "-cx")) else (row, "", "")
    if variant and not algorithm_named(algorithm).variants:
        raise FedSPMError(f"--algorithms: {algorithm} has no variants, so there is no {row}; write {algorithm}")
    return {"algorithm": algorithm} | ({"variant": variant} if variant else {})


def _options_of(row: str, given: Mapping[str, Any]) -> dict[str, Any]:
    known = algorithm_named(row_settings(row)["algorithm"]).Options.model_fields
    return {key: value for key, value in given.items() if key in known}


def slowest_first(cells: Sequence[Cell]) -> list[Cell]:
    """Panel by panel, seed by seed, and the long trainings, which stand last in a table, begun first: no core waits at
    the end."""
    groups = list(dict.fromkeys((cell.panel, cell.config.seed) for cell in cells))
    return sorted(cells, key=lambda cell: (groups.index((cell.panel, cell.config.seed)), -cells.index(cell)))


@dataclass(frozen=True)
class Comparison:
    """What is known so far: the methods with finished trainings, and the names of the trainings that are missing."""

    methods: list[Method]
    missing: str
    rows: list[Row] = field(default_factory=list)  # with baselines: scikit-learn's learners, and the methods
    sentences: list[str] = field(default_factory=list)  # … and what follows from them


def write_comparison(folder: Path, cells: Sequence[Cell], command: str, baselines: bool = False) -> Comparison:
    """table.md, table.csv, table.tex, curves.png, curves.svg and cells.jsonl of all cells that are finished; with
    baselines also federate.md."""
    done = [cell for cell in cells if cell.finished()]
    missing = ", ".join(cell.name for cell in cells if cell not in done)
    records = [record(cell) for cell in done]
    methods = method_rows(records)
    if methods:
        write_atomically(folder / "cells.jsonl", record_lines(records))
        write_atomically(folder / "table.md", markdown(methods, records, missing, command))
        write_atomically(folder / "table.csv", spreadsheet(methods))
        write_atomically(folder / "table.tex", latex(methods, missing))
        figure = comparison_curves({method.title: method.curves for method in methods})
        for kind in ("svg", "png"):
            write_atomically(folder / f"curves.{kind}", rendered(figure, kind))
    if not (methods and baselines):
        return Comparison(methods, missing)
    rows = [*baseline_rows(learn_baselines(done, folder)), *map(method_row, methods)]
    said = sentences(rows)
    write_atomically(folder / "federate.md", page(rows, said, command))
    return Comparison(methods, missing, rows, said)
