"""What an experiment leaves: the table as Markdown and LaTeX, the figure, a page with our numbers beside the paper's.

Everything is written from cells.jsonl and the plan. What somebody concludes stands in CONCLUSION.md beside it, written
by hand, and is taken into the page as it is.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from matplotlib.figure import Figure

from fedspm.base.files import write_atomically
from fedspm.experiments.coverage import missing, named_seeds, reductions
from fedspm.experiments.plan import Panel, Plan
from fedspm.experiments.records import Records
from fedspm.experiments.statistics import ACCURACIES, CONFIDENCE, Method
from fedspm.experiments.tables import (
    LATEX,
    LETTERS,
    MARKDOWN,
    REACHED,
    Style,
    difference_rows,
    figures,
    made_with,
    markdown_table,
)
from fedspm.experiments.training_record import Record, method_rows
from fedspm.likelihood.diagnostics import Bridge, bridge_errors, shown_bridge, solved_lines
from fedspm.report.figures import Curves, convergence, note_above, over_values, panel_curves, rendered
from fedspm.runs.config import recorded, resolve

Reached = dict[str, list[Method]]  # by panel


def write_results(plan: Plan, records: Records, folder: Path, command: str) -> Reached:
    """All files of results/NAME; returns what every panel reached with the seeds that most of its rows have."""
    if not records.lines:
        return {}
    less, groups = reductions(plan, records), by_seeds(plan, records)
    mark = marked(less)
    tables, typeset = [*mark], [*(f"% reduced: {each}" for each in less)]
    for seeds, found in groups.items():
        tables += [f"{named_seeds(seeds).capitalize()}:", "", *summary(plan, found, MARKDOWN), ""]
        typeset += [f"% {named_seeds(seeds)}", *latex(plan, found, less)]
    write_atomically(folder / "table.md", "\n".join(tables))
    write_atomically(folder / "table.tex", "\n".join([*typeset, ""]))
    reached = {panel.name: methods for panel in plan.panels if (methods := panel_methods(plan, records, panel.name))}
    if figure := picture(plan, records, reached):
        if less:
            note_above(figure, f"reduced: {'; '.join(less)}")
        for kind in ("svg", "png"):
            write_atomically(folder / f"figure.{kind}", rendered(figure, kind))
    write_atomically(folder / "README.md", "\n".join(page(plan, records, mark, folder, command)))
    return reached


def marked(less: Sequence[str]) -> list[str]:
    return [f"**Reduced:** {'; '.join(less)}.", ""] if less else []


def panel_methods(plan: Plan, records: Records, panel: str) -> list[Method]:
    """Rows of a panel over the seeds that all, or else most, of them have."""
    lines = records.of_panel(panel, plan)
    return _titled(plan, same_seeds(lines)[0]) if lines else []


def by_seeds(plan: Plan, records: Records) -> dict[tuple[int, ...], Reached]:
    """What the panels reached with the same seeds, for tables that show all of them side by side."""
    found: dict[tuple[int, ...], Reached] = {}
    for panel in plan.panels:
        for lines in same_seeds(records.of_panel(panel.name, plan)):
            found.setdefault(_seeds_of(lines), {})[panel.name] = _titled(plan, lines)
    return found


def _titled(plan: Plan, lines: Sequence[Record]) -> list[Method]:
    """A row each, under the name that the plan gives it where it is not a method's."""
    methods = method_rows(lines)
    if isinstance(plan.rows, list):
        return methods
    return [replace(method, title=f"{plan.axis} = {method.name}" if plan.axis else method.name) for method in methods]


def same_seeds(lines: Sequence[Record]) -> list[list[Record]]:
    """Lines that belong into one table, since another seed is another partition: rows with the seeds that all of them
    have, and for every larger set of seeds that some row has, the rows that have all of it. Most rows first."""
    having: dict[str, frozenset[int]] = {}
    for line in lines:
        having[line["method"]] = having.get(line["method"], frozenset()) | {line["seed"]}
    wanted = set(having.values())
    if wanted and (common := frozenset.intersection(*wanted)):
        wanted.add(common)
    tables = [[line for line in lines if line["seed"] in seeds and seeds <= having[line["method"]]] for seeds in wanted]
    return sorted(tables, key=lambda table: (-len({line["method"] for line in table}), _seeds_of(table)))


def _seeds_of(lines: Sequence[Record]) -> tuple[int, ...]:
    return tuple(sorted({line["seed"] for line in lines}))


# -- tables ----------------------------------------------------------------------------------------------------------


def summary(plan: Plan, reached: Reached, style: Style) -> list[str]:
    """A row a method, system and average accuracy of every panel, as the paper prints it."""
    headings, rows = _wide(plan, reached, style)
    return markdown_table(headings, rows)


def latex(plan: Plan, reached: Reached, less: Sequence[str]) -> list[str]:
    """The same for a paper; what was reduced stands below."""
    headings, rows = _wide(plan, reached, LATEX)
    width, panels = len(headings), len(reached)
    spans = [rf"\multicolumn{{{panels}}}{{c}}{{{metric} accuracy}}" for metric in ("System", "Average")]
    titles = ["Method", *(plan.panel(name).title for name in reached), *(plan.panel(name).title for name in reached)]
    lines = [" & ".join(map(_tex, row)) + r" \\" for row in (titles, *rows)]
    note = [rf"\multicolumn{{{width}}}{{l}}{{\footnotesize Reduced: {_tex('; '.join(less))}}} \\"] if less else []
    return [
        r"% \usepackage{booktabs}; superscripts mark the three best",
        rf"\begin{{tabular}}{{l{'c' * (width - 1)}}}",
        r"\toprule",
        " & ".join(["", *spans]) + r" \\",
        rf"\cmidrule(lr){{2-{1 + panels}}} \cmidrule(lr){{{2 + panels}-{width}}}",
        lines[0],
        r"\midrule",
        *lines[1:],
        r"\bottomrule",
        *note,
        r"\end{tabular}",
    ]


def _tex(text: str) -> str:
    """Letters that LaTeX does not know, or takes for something else; formulas stay."""
    if text.startswith("$"):
        return text
    plain, *rest = re.split(r"α_(\w+)", text)
    subscripts = [rf"$\alpha_{{\mathrm{{{part}}}}}$" for part in rest[::2]]
    following = [part.translate(LETTERS) for part in rest[1::2]]
    return plain.translate(LETTERS) + "".join(chain(*zip(subscripts, following, strict=True)))


def _wide(plan: Plan, reached: Reached, style: Style) -> tuple[list[str], list[list[str]]]:
    titles = {method.name: method.title for methods in reached.values() for method in methods}
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
    wanted = resolve(plan.settings, panel.settings)
    given = [recorded(line["settings"]) for line in records.of_panel(panel.name, plan)]
    if any(each.rows != wanted.rows for each in given):
        panel = panel.model_copy(update={"paper": {}})  # its numbers are for other data
    for lines in same_seeds(records.of_panel(panel.name, plan)):
        methods, seeds = _titled(plan, lines), _seeds_of(lines)
        text += [f"{named_seeds(seeds).capitalize()}:", "", *beside_the_paper(panel, methods), ""]
        if notes := [f"- {each.title}: {panel.notes[each.name]}" for each in methods if each.name in panel.notes]:
            text += [*notes, ""]
        if len(seeds) > 1 < len(methods):
            text += [f"Difference to the best in points, paired by seed, with its {CONFIDENCE:.0%} interval:", ""]
            text += [*markdown_table(REACHED, difference_rows(methods, MARKDOWN)), ""]
    return text


def bridges(plan: Plan, records: Records) -> dict[str, Bridge]:
    """The bridge errors of every diagnosed training in which eq. 6 had a solution at least once."""
    lines = [line for line in records.ordered(plan) if solved_lines(line["diagnostics"], "fixed")]
    return {_bridged(line, records): bridge_errors(line["diagnostics"]) for line in lines}


def _bridged(line: Record, records: Records) -> str:
    name = f"μ = {line['settings']['router']['momentum']:g}"
    return name if len({seed for _, _, seed in records.lines}) == 1 else f"{name}, seed {line['seed']}"


def bridge_table(plan: Plan, records: Records) -> list[str]:
    found = bridges(plan, records)
    rows = []
    for line in records.ordered(plan):
        name, last = _bridged(line, records), line["metrics"][-1]
        bridge = found.get(name)
        unsolved = bridge.unsolved if bridge else len(line["diagnostics"])
        share = f"{unsolved} of {len(line['diagnostics'])}"
        rows.append([name.removeprefix("μ = "), *shown_bridge(bridge), share, f"{last['routing_accuracy']:.4f}"])
    headings = ["μ", "mean of ‖∇F‖²", "Γ₂", "mean ε", "sum of δ / √T", "rounds without solution", "routing accuracy"]
    return markdown_table(headings, rows)


# -- the picture and the page ------------------------------------------------------------------------------------------


def picture(plan: Plan, records: Records, reached: Reached) -> Figure | None:
    if plan.picture == "convergence":
        found = bridges(plan, records)
        return convergence(found) if found else None
    if plan.picture == "values":
        methods = next(iter(reached.values()))
        shown = {metric: {m.name: m.accuracy[metric] for m in methods} for metric in ("system", "average")}
        return over_values(plan.axis, "accuracy", shown)
    metrics = ACCURACIES if len(reached) == 1 else {"system": ACCURACIES["system"]}
    panels = [
        Curves(
            f"{plan.panel(name).title}\n{named_seeds(methods[0].curves)}",
            f"{metric} accuracy",
            key,
            {method.title: method.curves for method in methods if metric in method.accuracy},
        )
        for name, methods in reached.items()
        for metric, key in metrics.items()
    ]
    rows = plan.row_names()
    places = {method.title: rows.index(method.name) for methods in reached.values() for method in methods}
    return panel_curves([panel for panel in panels if panel.methods], places)


def page(plan: Plan, records: Records, mark: list[str], folder: Path, command: str) -> list[str]:
    lines = records.ordered(plan)
    began = sorted(line["created"][:10] for line in lines)
    days = began[0] if began[0] == began[-1] else f"{began[0]} to {began[-1]}"
    text = [
        f"# {plan.title}",
        "",
        f"{plan.whence} `{command}` goes on with it.",
        "",
        f"{made_with(lines[0])}; {len(lines)} trainings begun {days}.",
        "Accuracy on test rows in per cent, mean ± standard deviation over seeds where there are several. Every figure",
        "is from `cells.jsonl`.",
        "",
        *mark,
    ]
    for panel in plan.panels:
        if tables := panel_tables(plan, records, panel):
            text += [f"## {panel.title}", "", *tables]
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
