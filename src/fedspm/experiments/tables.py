"""The tables of a comparison, as the paper prints them: for the terminal, as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedspm.base.files import write_atomically
from fedspm.data.settings import Data
from fedspm.experiments.comparison import (
    ACCURACIES,
    CONFIDENCE,
    Method,
    Record,
    best,
    method_rows,
    paired_difference,
    ranks,
    record,
    record_lines,
    spread,
)
from fedspm.experiments.grid import Cell
from fedspm.report.figures import comparison_curves, rendered

UNRANKED = 99
LETTERS = str.maketrans(
    {"\\": r"\textbackslash{}", "×": r"$\times$", "α": r"$\alpha$", "μ": r"$\mu$", "–": "--", "~": r"\textasciitilde{}"}
    | {letter: "\\" + letter for letter in "&%$#_{}"}
)  # as LaTeX sets them


@dataclass(frozen=True)
class Style:
    """How a figure is written: mean ± sd with its rank, a difference with its interval, and what does not exist."""

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
    columns = [figures(methods, metric, style) for metric in ACCURACIES]
    return [[method.title, *(column.get(method.name, style.nothing) for column in columns)] for method in methods]


def figures(methods: Sequence[Method], metric: str, style: Style) -> dict[str, str]:
    """One accuracy of every method that has it, with its rank."""
    order = ranks(methods, metric)
    return {
        method.name: style.figure(*spread(method.accuracy[metric]), order.get(method.name, UNRANKED))
        for method in methods
        if metric in method.accuracy
    }


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


def markdown(methods: Sequence[Method], records: Sequence[Record], missing: str, command: str) -> str:
    """The whole page: what was run, the tables, and the picture."""
    seeds = {seed for method in methods for seed in method.curves}
    interval = "" if len(seeds) > 1 else " One seed has no interval."
    return "\n".join(
        [
            "# Comparison",
            "",
            *(f"- {line}" for line in about(records, missing, command)),
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


def about(records: Sequence[Record], missing: str, command: str) -> list[str]:
    """What was run, where, and what is missing."""
    first = records[0]
    settings = first["settings"]
    lines = [
        f"`{command}`",
        f"{Data.model_validate(settings['data']).title}, {first['clients']} clients, C = {settings['components']}, "
        f"{settings['rounds']} rounds, preset {settings['preset']}, "
        f"seeds {', '.join(map(str, dict.fromkeys(each['seed'] for each in records)))}",
        f"{made_with(first)}; begun {first['created'][:10]}",
    ]
    if missing:
        lines.append(f"**not finished:** {missing}")
    return lines


def made_with(record: Record) -> str:
    """Machine and versions of a training."""
    machine, versions = record["machine"], record["versions"]
    return (
        f"{machine['processor']}, {machine['cores']} cores; Python {versions['python']}, torch {versions['torch']}, "
        f"fedspm {record['fedspm']}"
    )


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> list[str]:
    """The first columns have words and go to the left, the others have numbers and go to the right."""
    widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        left = [cell.ljust(width) for cell, width in zip(cells[:words], widths[:words], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(cells[words:], widths[words:], strict=True)]
        return "| " + " | ".join(left + right) + " |"

    rule = [*("-" * width for width in widths[:words]), *("-" * (width - 1) + ":" for width in widths[words:])]
    return [line(headings), line(rule), *map(line, rows)]


def latex(methods: Sequence[Method], missing: str) -> str:
    """A table for a paper, with booktabs."""

    def lines(rows: Sequence[Sequence[str]]) -> list[str]:
        return [" & ".join([title.translate(LETTERS), *cells]) + r" \\" for title, *cells in rows]

    return "\n".join(
        [
            r"% \usepackage{booktabs}; mean and standard deviation over seeds, superscripts mark the three best",
            *([f"% not finished: {missing}"] if missing else []),
            r"\begin{tabular}{lccc}",
            r"\toprule",
            r"Method & System accuracy & Average accuracy & Routing accuracy \\",
            r"\midrule",
            *lines(accuracy_rows(methods, LATEX)),
            r"\midrule",
            rf"\multicolumn{{4}}{{l}}{{Difference to the best by seed, {100 * CONFIDENCE:.0f}\,\% interval}} \\",
            r"\midrule",
            *lines(difference_rows(methods, LATEX)),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def spreadsheet(methods: Sequence[Method]) -> str:
    """CSV with plain numbers, one line per method and seed."""
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


@dataclass(frozen=True)
class Comparison:
    """What is known so far: the methods with finished trainings, and the names of the trainings that are missing."""

    methods: list[Method]
    missing: str


def write_comparison(folder: Path, cells: Sequence[Cell], command: str) -> Comparison:
    """table.md, table.csv, table.tex, curves.png, curves.svg and cells.jsonl of all cells that are finished."""
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
    return Comparison(methods, missing)
