"""A comparison of methods over seeds: the table as the paper prints it, paired differences, and the curves."""

import csv
import hashlib
import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from fedspm.algorithms import ALGORITHMS, algorithm_named
from fedspm.config import Config, resolve
from fedspm.errors import FedSPMError
from fedspm.files import write_atomically
from fedspm.grid import Cell
from fedspm.pictures import comparison_curves, rendered
from fedspm.runs import Run

ACCURACIES = {"system": "system_accuracy", "average": "average_accuracy", "routing": "routing_accuracy"}
CONFIDENCE = 0.95
UNRANKED = 99
Seeds = Mapping[int, float]  # a figure for every seed


@dataclass(frozen=True)
class Method:
    """One row of the table: what a method reached with every seed, and what it cost."""

    name: str
    title: str
    accuracy: Mapping[str, Seeds]
    parameters: int
    private: int
    bytes_down: int | None
    bytes_up: int | None
    seconds_per_round: float
    curves: Mapping[int, Sequence[Mapping[str, Any]]]


def comparison_cells(settings: Mapping[str, Any], rows: str, seeds: str, folder: Path) -> list[Cell]:
    """Every method with every seed, as run folders below `folder`."""
    if taken := {"seed", "algorithm", "variant"} & settings.keys():
        raise FedSPMError(f"{min(taken)} is what is compared; use --seeds and --algorithms instead")
    cells = []
    for seed in numbers("--seeds", seeds):
        for row in _named_rows(rows):
            algorithm, _, variant = row.rpartition("-") if row.endswith(("-1x", "-cx")) else (row, "", "")
            chosen = {"algorithm": algorithm, "seed": seed} | ({"variant": variant} if variant else {})
            method = algorithm_named(algorithm)
            if variant and not method.variants:
                raise FedSPMError(f"--algorithms: {algorithm} has no variants, so there is no {row}; write {algorithm}")
            config = resolve(settings, chosen)
            method.checked_options(config)
            cells.append(Cell(row, config, folder / "runs" / f"{row}-seed{seed}"))
    return cells


def slowest_first(cells: Sequence[Cell]) -> list[Cell]:
    """Seed by seed, and the long trainings, which stand last in a table, begun first: no core waits at the end."""
    seeds = list(dict.fromkeys(cell.config.seed for cell in cells))
    return sorted(cells, key=lambda cell: (seeds.index(cell.config.seed), -cells.index(cell)))


def _named_rows(text: str) -> list[str]:
    """`all` is the paper's table: the nine baselines, and FedSPM with shared encoders and with C of them."""
    if text == "all":
        return [*(name for name in ALGORITHMS if name != "fedspm"), "fedspm-1x", "fedspm-cx"]
    rows = [row.strip() for row in text.split(",") if row.strip()]
    if not rows or len(set(rows)) < len(rows):
        raise FedSPMError(f"--algorithms {text!r}: write all, or different names with commas between them")
    return rows


def numbers(option: str, text: str) -> list[int]:
    """Different whole numbers from the command line."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found) or min(found) < 0:
        raise FedSPMError(
            f"{option} {text!r}: write different whole numbers with commas between them, for instance 0,1,2"
        )
    return found


def method_rows(cells: Sequence[Cell]) -> list[Method]:
    """The finished cells, a row a method, in their order. With the same seed all have to have seen the same data."""
    runs: dict[str, dict[int, Run]] = {}
    data: dict[int, str] = {}
    for cell in cells:
        if cell.finished():
            run = Run.open(cell.folder)
            seen = data.setdefault(cell.config.seed, run.manifest["data_fingerprint"])
            if seen != run.manifest["data_fingerprint"]:
                raise FedSPMError(
                    f"{cell.folder} was trained on other data than the others with seed {cell.config.seed}"
                )
            runs.setdefault(cell.row, {})[cell.config.seed] = run
    methods = [_method(name, by_seed) for name, by_seed in runs.items()]
    titles = [method.title for method in methods]
    most = max((len(by_seed) for by_seed in runs.values()), default=0)
    for i, method in enumerate(methods):
        title = method.title if titles.count(method.title) == 1 else f"{method.title}, {method.name}"
        seeds = len(runs[method.name])
        methods[i] = replace(method, title=title if seeds == most else f"{title}, {seeds} of {most} seeds")
    return methods


def _method(name: str, runs: Mapping[int, Run]) -> Method:
    first = next(iter(runs.values()))
    lines = {seed: run.metrics() for seed, run in runs.items()}
    last = {seed: line[-1] for seed, line in lines.items()}
    copies = max(encoder.get("copies", 1) for encoder in first.manifest["encoders"].values())
    line = next(iter(last.values()))
    return Method(
        name=name,
        title=f"{algorithm_named(first.config.algorithm).__name__} ({'C' if copies > 1 else '1'}×)",
        accuracy={
            short: {seed: metrics[key] for seed, metrics in last.items()}
            for short, key in ACCURACIES.items()
            if key in line
        },
        parameters=line["parameters"]["shared"],
        private=line["parameters"]["private"],
        bytes_down=line.get("bytes_down"),
        bytes_up=line.get("bytes_up"),
        seconds_per_round=statistics.mean(metrics["seconds"] / metrics["round"] for metrics in last.values()),
        curves=lines,
    )


# -- statistics over seeds -------------------------------------------------------------------------------------------


def spread(values: Seeds) -> tuple[float, float | None]:
    """Mean and standard deviation (n − 1) over seeds; None of one seed."""
    figures = list(values.values())
    return statistics.mean(figures), statistics.stdev(figures) if len(figures) > 1 else None


def ranks(methods: Sequence[Method], metric: str) -> dict[str, int]:
    """1 for the highest mean, equal means sharing a rank; a mean over fewer seeds than others have is not ranked."""
    means = {method.name: spread(method.accuracy[metric])[0] for method in _complete(methods, metric)}
    return {name: 1 + sum(other > mean for other in means.values()) for name, mean in means.items()}


def _complete(methods: Sequence[Method], metric: str) -> list[Method]:
    having = [method for method in methods if metric in method.accuracy]
    most = max((len(method.accuracy[metric]) for method in having), default=0)
    return [method for method in having if len(method.accuracy[metric]) == most]


def paired_difference(these: Seeds, those: Seeds) -> tuple[float, float | None] | None:
    """Mean of the differences with the same seed, and the half width of its 95 % interval (Student's t)."""
    differences = [these[seed] - those[seed] for seed in these if seed in those]
    if not differences:
        return None
    mean = statistics.mean(differences)
    if len(differences) == 1:
        return mean, None
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, len(differences) - 1))
    return mean, quantile * statistics.stdev(differences) / len(differences) ** 0.5


def best(methods: Sequence[Method], metric: str) -> Method:
    return max(_complete(methods, metric), key=lambda method: spread(method.accuracy[metric])[0])


# -- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """How a table is written: mean ± sd with a rank, a difference with its interval, and the frame around the rows."""

    figure: Callable[[float, float | None, int], str]
    difference: Callable[[float, float | None], str]
    nothing: str


def _plain_figure(mean: float, deviation: float | None, rank: int) -> str:
    text = f"{100 * mean:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")
    return f"{text} ({rank})" if rank <= 3 else f"{text}    "


def _plain_difference(mean: float, half: float | None) -> str:
    return f"{100 * mean:+.2f}" + ("" if half is None else f" ± {100 * half:.2f}")


def _markdown_figure(mean: float, deviation: float | None, rank: int) -> str:
    text = f"{100 * mean:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")
    return (f"**{text}**" if rank == 1 else text) + (f" <sup>({rank})</sup>" if rank <= 3 else "")


def _latex_figure(mean: float, deviation: float | None, rank: int) -> str:
    text = f"{100 * mean:.2f}" + ("" if deviation is None else rf"\pm{100 * deviation:.2f}")
    text = rf"\mathbf{{{text}}}" if rank == 1 else text
    return f"${text}" + (f"^{{({rank})}}$" if rank <= 3 else "$")


def _latex_difference(mean: float, half: float | None) -> str:
    return f"${100 * mean:+.2f}" + ("$" if half is None else rf"\pm{100 * half:.2f}$")


PLAIN = Style(_plain_figure, _plain_difference, "–")
MARKDOWN = Style(_markdown_figure, _plain_difference, "–")
LATEX = Style(_latex_figure, _latex_difference, "--")

REACHED = ("method", *ACCURACIES)
COSTS = ("method", "parameters", "of a client", "MB down", "MB up", "s a round")


def accuracy_rows(methods: Sequence[Method], style: Style) -> list[list[str]]:
    """Accuracies in per cent."""
    order = {metric: ranks(methods, metric) for metric in ACCURACIES}
    rows = []
    for method in methods:
        row = [method.title]
        for metric in ACCURACIES:
            shown = metric in method.accuracy
            row.append(
                style.figure(*spread(method.accuracy[metric]), order[metric].get(method.name, UNRANKED))
                if shown
                else style.nothing
            )
        rows.append(row)
    return rows


def cost_rows(methods: Sequence[Method], style: Style) -> list[list[str]]:
    """Parameters that all share and that each client has for itself; bytes of a round over all clients; seconds."""
    return [
        [
            method.title,
            f"{method.parameters:,}",
            f"{method.private:,}",
            *(
                style.nothing if count is None else f"{count / 1e6:.2f}"
                for count in (method.bytes_down, method.bytes_up)
            ),
            f"{method.seconds_per_round:.2f}",
        ]
        for method in methods
    ]


def difference_rows(methods: Sequence[Method], style: Style) -> list[list[str]]:
    """Differences to the best mean, in points, paired by seed."""
    rows = []
    for method in methods:
        row = [method.title]
        for metric in ACCURACIES:
            if metric not in method.accuracy:
                row.append(style.nothing)
            elif (top := best(methods, metric)) is method:
                row.append("best")
            else:
                found = paired_difference(method.accuracy[metric], top.accuracy[metric])
                row.append(style.difference(*found) if found else style.nothing)
        rows.append(row)
    return rows


def markdown(methods: Sequence[Method], cells: Sequence[Cell], command: str) -> str:
    """The whole page: what was run, both tables, and the picture."""
    seeds = {seed for method in methods for seed in method.curves}
    interval = "" if len(seeds) > 1 else " One seed has no interval."
    about = _about(cells, command)
    return "\n".join(
        [
            "# Comparison",
            "",
            *(f"- {line}" for line in about),
            "",
            "Accuracy on test rows in per cent, mean ± standard deviation over seeds, the three best marked.",
            "",
            *markdown_table(REACHED, accuracy_rows(methods, MARKDOWN)),
            "",
            f"Difference to the best in points, paired by seed, with its {CONFIDENCE:.0%} interval.{interval}",
            "",
            *markdown_table(REACHED, difference_rows(methods, MARKDOWN)),
            "",
            "What it takes: parameters that all share and that each client has for itself, megabytes of a round to and",
            "from all clients together, seconds a round beside the other trainings.",
            "",
            *markdown_table(COSTS, cost_rows(methods, MARKDOWN)),
            "",
            "![accuracy over rounds](curves.png)",
            "",
        ]
    )


def _about(cells: Sequence[Cell], command: str) -> list[str]:
    """What was run, where, and what is missing."""
    config = cells[0].config
    known = next(Run.open(cell.folder).manifest for cell in cells if cell.finished())
    machine, versions = known["machine"], known["versions"]
    lines = [
        f"`{command}`",
        f"{config.data.name}, {config.data.clients} clients, C = {config.components}, {config.rounds} rounds, "
        f"preset {config.preset}, seeds {', '.join(map(str, dict.fromkeys(cell.config.seed for cell in cells)))}",
        f"{machine['processor']}, {machine['cores']} cores; Python {versions['python']}, torch {versions['torch']}, "
        f"fedspm {known['fedspm']}; begun {known['created'][:10]}",
    ]
    if missing := unfinished(cells):
        lines.append(f"**not finished:** {missing}")
    return lines


def unfinished(cells: Sequence[Cell]) -> str:
    return ", ".join(cell.name for cell in cells if not cell.finished())


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        padded = [cells[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:]))]  # noqa: B905
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [line(headings), line(rule), *map(line, rows)]


def latex(methods: Sequence[Method], cells: Sequence[Cell]) -> str:
    """A table for a paper, with booktabs."""
    missing = unfinished(cells)
    body = [
        " & ".join(cell.replace("×", r"$\times$") for cell in row) + r" \\" for row in accuracy_rows(methods, LATEX)
    ]
    differences = [
        " & ".join(cell.replace("×", r"$\times$") for cell in row) + r" \\" for row in difference_rows(methods, LATEX)
    ]
    return "\n".join(
        [
            r"% \usepackage{booktabs}; mean and standard deviation over seeds, superscripts mark the three best",
            *([f"% not finished: {missing}"] if missing else []),
            r"\begin{tabular}{lccc}",
            r"\toprule",
            r"Method & System accuracy & Average accuracy & Routing accuracy \\",
            r"\midrule",
            *body,
            r"\midrule",
            rf"\multicolumn{{4}}{{l}}{{Difference to the best by seed, {100 * CONFIDENCE:.0f}\,\% interval}} \\",
            r"\midrule",
            *differences,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def spreadsheet(methods: Sequence[Method]) -> str:
    """CSV with plain numbers, one line a method and seed."""
    buffer = io.StringIO()
    names = ["method", "seed", *ACCURACIES.values(), "parameters", "private_parameters", "bytes_down", "bytes_up"]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*names, "seconds_per_round"])
    for method in methods:
        for seed, lines in method.curves.items():
            accuracies = [lines[-1].get(key, "") for key in ACCURACIES.values()]
            costs = [method.parameters, method.private, method.bytes_down, method.bytes_up]
            writer.writerow(
                [method.name, seed, *accuracies, *costs, round(lines[-1]["seconds"] / lines[-1]["round"], 4)]
            )
    return buffer.getvalue()


def configuration_hash(config: Config) -> str:
    return hashlib.sha256(config.to_toml().encode()).hexdigest()[:16]


def cell_lines(cells: Sequence[Cell]) -> str:
    """cells.jsonl: every finished cell with its metrics over rounds, configuration hash and versions."""
    lines = []
    for cell in cells:
        if cell.finished():
            run = Run.open(cell.folder)
            known = run.manifest
            facts = {
                "method": cell.row,
                "seed": cell.config.seed,
                "configuration": configuration_hash(cell.config),
                "data_fingerprint": known["data_fingerprint"],
                "fedspm": known["fedspm"],
                "versions": known["versions"],
                "machine": known["machine"],
                "created": known["created"],
                "metrics": run.metrics(),
            }
            lines.append(json.dumps(facts, ensure_ascii=False))
    return "\n".join(lines) + "\n"


def write_comparison(folder: Path, cells: Sequence[Cell], command: str) -> list[Method]:
    """table.md, table.csv, table.tex, curves.png, curves.svg and cells.jsonl of all cells that are finished."""
    methods = method_rows(cells)
    if methods:
        write_atomically(folder / "cells.jsonl", cell_lines(cells))
        write_atomically(folder / "table.md", markdown(methods, cells, command))
        write_atomically(folder / "table.csv", spreadsheet(methods))
        write_atomically(folder / "table.tex", latex(methods, cells))
        figure = comparison_curves({method.title: method.curves for method in methods})
        for kind in ("svg", "png"):
            write_atomically(folder / f"curves.{kind}", rendered(figure, kind))
    return methods
