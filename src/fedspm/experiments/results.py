"""What an experiment leaves: the table as Markdown and LaTeX, the figure, a page with our numbers beside the paper's.

Everything is written from cells.jsonl and the plan. What somebody concludes stands in CONCLUSION.md beside it, written
by hand, and is taken into the page as it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from matplotlib.figure import Figure

from fedspm.comparison import ACCURACIES, CONFIDENCE, Method, Record, method_rows
from fedspm.config import changed, recorded, resolve
from fedspm.experiments.plan import Panel, Plan
from fedspm.experiments.records import Records
from fedspm.files import write_atomically
from fedspm.likelihood.diagnostics import Bridge, bridge_errors, solved_lines
from fedspm.pictures import convergence, over_values, panel_curves, rendered
from fedspm.tables import LATEX, MARKDOWN, REACHED, Style, difference_rows, figures, made_with, markdown_table

Reached = dict[str, list[Method]]  # by panel


def write_results(plan: Plan, records: Records, folder: Path, command: str) -> Reached:
    """All files of results/NAME; returns what every panel reached."""
    reached = {panel.name: panel_methods(plan, records, panel.name) for panel in plan.panels}
    reached = {name: methods for name, methods in reached.items() if methods}
    if reached:
        less = reductions(plan, records)
        mark = [f"**Reduced:** {'; '.join(less)}.", ""] if less else []
        over = [f"{plan.panel(name).title}: {_seeds(methods[0].curves).lower()}" for name, methods in reached.items()]
        write_atomically(
            folder / "table.md", "\n".join([*mark, f"{'; '.join(over)}.", "", *summary(plan, reached, MARKDOWN), ""])
        )
        notes = [*(f"% reduced: {each}" for each in less), *(f"% {each}" for each in over)]
        write_atomically(folder / "table.tex", "\n".join([*notes, latex(plan, reached)]))
        if figure := picture(plan, records, reached):
            if less:
                figure.suptitle(f"reduced: {'; '.join(less)}", fontsize=7)
            for kind in ("svg", "png"):
                write_atomically(folder / f"figure.{kind}", rendered(figure, kind))
        write_atomically(folder / "README.md", "\n".join(page(plan, records, reached, mark, folder, command)))
    return reached


def panel_methods(plan: Plan, records: Records, panel: str) -> list[Method]:
    """Rows of a panel over the seeds that all of them have."""
    lines = records.of_panel(panel, plan)
    return _titled(plan, same_seeds(lines)[0]) if lines else []


def _titled(plan: Plan, lines: Sequence[Record]) -> list[Method]:
    """A row each, under the name that the plan gives it where it is not a method's."""
    methods = method_rows(lines)
    if isinstance(plan.rows, list):
        return methods
    return [replace(method, title=f"{plan.axis} = {method.name}" if plan.axis else method.name) for method in methods]


def same_seeds(lines: Sequence[Record]) -> list[list[Record]]:
    """Lines that belong into one table, since another seed is another partition: all rows with the seeds that every one
    of them has, then, where two rows or more share others, those with the most. Rows without a common seed stay
    together."""
    seeds: dict[str, frozenset[int]] = {}
    for line in lines:
        seeds[line["method"]] = seeds.get(line["method"], frozenset()) | {line["seed"]}
    common = frozenset.intersection(*seeds.values())

    def rows(wanted: frozenset[int]) -> int:
        return sum(wanted <= having for having in seeds.values())

    pairs = {one & other for one, other in combinations(seeds.values(), 2)}
    most = max(pairs, key=lambda wanted: (len(wanted), rows(wanted)), default=common)
    if not common:
        return [list(lines)]
    return [
        [line for line in lines if line["seed"] in wanted and wanted <= seeds[line["method"]]]
        for wanted in ((common, most) if len(most) > len(common) else (common,))
    ]


def missing(plan: Plan, records: Records) -> list[str]:
    """What the plan has and nobody has trained, panel by panel; seeds that lack the same rows together."""
    lines = []
    for panel in plan.panels:
        lacking: dict[str, list[int]] = {}
        for seed in plan.seeds:
            rows = [row for row in plan.row_names() if (panel.name, row, seed) not in records.lines]
            if rows:
                which = "all rows" if len(rows) == len(plan.rows) else ", ".join(rows)
                lacking.setdefault(which, []).append(seed)
        for which, seeds in lacking.items():
            lines.append(f"{panel.title}, {_seeds(seeds).lower()}: {which}")
    return lines


def reductions(plan: Plan, records: Records) -> list[str]:
    """Where a training had less than the plan says: rounds, or any other setting."""
    found: dict[str, None] = {}
    for line in records.ordered(plan):
        wanted = resolve(plan.settings_of(plan.panel(line["panel"]), line["method"]))
        for key, (asked, given) in changed(wanted, recorded(line["settings"])).items():
            if key == "rounds":
                found[f"{given} rounds instead of {asked}"] = None
            elif key not in ("seed", "horizon", "eval_every"):
                found[f"{key} = {given} instead of {asked}"] = None
    return list(found)


# -- tables ----------------------------------------------------------------------------------------------------------


def summary(plan: Plan, reached: Reached, style: Style) -> list[str]:
    """A row a method, system and average accuracy of every panel, as the paper prints it."""
    headings, rows = _wide(plan, reached, style)
    return markdown_table(headings, rows)


def latex(plan: Plan, reached: Reached) -> str:
    headings, rows = _wide(plan, reached, LATEX)
    lines = [" & ".join(row).replace("×", r"$\times$").replace("_", r"\_") + r" \\" for row in (headings, *rows)]
    columns = "l" + "c" * (len(headings) - 1)
    parts = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([r"% \usepackage{booktabs}; superscripts mark the three best", *parts, r"\end{tabular}", ""])


def _wide(plan: Plan, reached: Reached, style: Style) -> tuple[list[str], list[list[str]]]:
    titles = {method.name: method.title.split(", ")[0] for methods in reached.values() for method in methods}
    headings, columns = ["method"], []
    for metric in ("system", "average"):
        for name, methods in reached.items():
            headings.append(f"{metric}, {plan.panel(name).title}")
            columns.append(figures(methods, metric, style))
    rows = [
        [titles[row], *(column.get(row, style.nothing) for column in columns)]
        for row in plan.row_names()
        if row in titles
    ]
    return headings, rows


def beside_the_paper(panel: Panel, methods: Sequence[Method]) -> list[str]:
    """Ours and the paper's, in per cent; only ours where the paper has no number."""
    ours = {metric: figures(methods, metric, MARKDOWN) for metric in ACCURACIES}
    routes = bool(ours["routing"])
    headings = ["method", "system"] + (["paper"] if panel.paper else []) + ["average"]
    headings += (["paper"] if panel.paper else []) + (["routing"] if routes else [])
    rows = []
    for method in methods:
        theirs = panel.paper.get(method.name, ("–", "–"))
        row = [method.title]
        for i, metric in enumerate(("system", "average")):
            row.append(ours[metric][method.name])
            if panel.paper:
                row.append(theirs[i])
        rows.append(row + ([ours["routing"].get(method.name, "–")] if routes else []))
    return markdown_table(headings, rows)


def panel_tables(plan: Plan, records: Records, panel: Panel) -> list[str]:
    """What a panel reached beside the paper; over several seeds also how far each is from the best."""
    text = []
    for lines in same_seeds(records.of_panel(panel.name, plan)):
        methods, seeds = _titled(plan, lines), sorted({line["seed"] for line in lines})
        text += [f"{_seeds(seeds)}:", "", *beside_the_paper(panel, methods), ""]
        if len(seeds) > 1 < len(methods):
            text += [f"Difference to the best in points, paired by seed, with its {CONFIDENCE:.0%} interval:", ""]
            text += [*markdown_table(REACHED, difference_rows(methods, MARKDOWN)), ""]
    return text


def _seeds(numbers: Iterable[int]) -> str:
    text = ", ".join(map(str, sorted(numbers)))
    return f"Seed{'s' if ',' in text else ''} {text}"


def bridges(plan: Plan, records: Records) -> dict[str, Bridge]:
    """The bridge errors of every diagnosed training in which eq. 6 had a solution at least once."""
    lines = [line for line in records.ordered(plan) if solved_lines(line["diagnostics"], "fixed")]
    return {line["method"]: bridge_errors(line["diagnostics"]) for line in lines}


def bridge_table(plan: Plan, records: Records) -> list[str]:
    found = bridges(plan, records)
    rows = []
    for line in records.ordered(plan):
        bridge, last = found.get(line["method"]), line["metrics"][-1]
        shown = [f"{value:.3g}" for value in bridge.final] if bridge else ["–"] * 4
        unsolved = bridge.unsolved if bridge else len(line["diagnostics"])
        share = f"{unsolved} of {len(line['diagnostics'])}"
        rows.append([f"{line['settings']['router']['momentum']:g}", *shown, share, f"{last['routing_accuracy']:.4f}"])
    headings = ["μ", "mean of ‖∇F‖²", "Γ₂", "mean ε", "sum of δ / √T", "rounds without solution", "routing accuracy"]
    return markdown_table(headings, rows)


# -- the picture and the page ------------------------------------------------------------------------------------------


def picture(plan: Plan, records: Records, reached: Reached) -> Figure | None:
    if plan.picture == "convergence":
        found = bridges(plan, records)
        return convergence({name.replace("mu-", "μ = "): bridge for name, bridge in found.items()}) if found else None
    if plan.picture == "values":
        methods = next(iter(reached.values()))
        shown = {metric: {m.name: m.accuracy[metric] for m in methods} for metric in ("system", "average")}
        return over_values(plan.axis, "accuracy", shown)
    return panel_curves(
        {plan.panel(name).title: {m.title: m.curves for m in methods} for name, methods in reached.items()}
    )


def page(plan: Plan, records: Records, reached: Reached, mark: list[str], folder: Path, command: str) -> list[str]:
    lines = records.ordered(plan)
    began = sorted(line["created"][:10] for line in lines)
    days = began[0] if began[0] == began[-1] else f"{began[0]} to {began[-1]}"
    text = [
        f"# {plan.title}",
        "",
        f"In the paper: {plan.source}. Last written by `{command}`; `fedspm experiment {plan.name}` goes on.",
        "",
        f"{made_with(lines[0])}; {len(lines)} trainings begun {days}.",
        "Accuracy on test rows in per cent, mean ± standard deviation over seeds where there are several. Every figure",
        "is from `cells.jsonl`.",
        "",
    ]
    text += mark
    for name in reached:
        text += [f"## {plan.panel(name).title}", "", *panel_tables(plan, records, plan.panel(name))]
    if plan.picture == "convergence":
        text += ["## Convergence", "", *bridge_table(plan, records), ""]
    if (folder / "figure.png").exists():
        text += ["![figure](figure.png)", ""]
    conclusion = folder / "CONCLUSION.md"
    if conclusion.exists():
        text += ["## What to conclude", "", conclusion.read_text().strip(), ""]
    if absent := missing(plan, records):
        text += ["## Not run", "", *(f"- {line}" for line in absent), ""]
    return text
