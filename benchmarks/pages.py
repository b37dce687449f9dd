"""Write what results/*/cells.jsonl say into the README, docs/results.md and every page of docs/algorithms, and
what can be set into docs/settings.md.

`python benchmarks/pages.py`, after `fedspm experiment NAME`; tests/docs/test_docs.py checks that all say the same.
"""

import re
from pathlib import Path

from fedspm.experiments import load_plan
from fedspm.experiments.comparison import CONFIDENCE, method_rows, paired_difference
from fedspm.experiments.coverage import missing, named_seeds, reductions
from fedspm.experiments.records import Records
from fedspm.experiments.results import beside_the_paper, bridge_table, marked, panel_methods, panel_tables
from fedspm.experiments.tables import MARKDOWN, markdown_table
from fedspm.runs.settings_reference import settings

ROOT = Path(__file__).parents[1]
PLAN = load_plan("table1")
PANELS = {"default": "fashion-mnist", "paper": "fashion-mnist-paper"}
PAPER = PLAN.panel(PANELS["default"]).paper
SEED = 0
OURS = ("fedspm-1x", "fedspm-cx")
HEADING = "## Our number beside the paper’s"


def records(experiment: str) -> Records:
    return Records(ROOT / "results" / experiment / "cells.jsonl")


def lines(panel: str) -> list[dict]:
    """The finished trainings of a panel of table 1 with the seed that the pages show."""
    return [line for line in records("table1").of_panel(panel, PLAN) if line["seed"] == SEED]


def measured(panel: str) -> dict[str, tuple[str, ...]]:
    """System and average accuracy by method."""
    keys = ("system_accuracy", "average_accuracy")
    return {line["method"]: tuple(f"{100 * line['metrics'][-1][key]:.2f}" for key in keys) for line in lines(panel)}


def algorithm_of(method: str) -> str:
    return method.removesuffix("-1x").removesuffix("-cx")


def section(name: str) -> str:
    """Of the page of one algorithm."""
    text = [
        HEADING,
        "",
        "Fashion-MNIST, 8 clients, 200 rounds, seed 0, test rows, per cent. The paper's figures are means over three",
        "seeds, for its own encoders and shifts, whose sizes it does not state.",
        "",
        "| | system | average |",
        "|---|---:|---:|",
    ]
    for method in (row for row in PAPER if algorithm_of(row) == name):
        which = " (C×)" if method.endswith("-cx") else " (1×)" if method.endswith("-1x") else ""
        for preset, panel in PANELS.items():
            system, average = measured(panel).get(method, ("not run", "not run"))
            text.append(f"| ours, {preset} preset{which} | {system} | {average} |")
        text.append(f"| the paper{which} | {PAPER[method][0]} | {PAPER[method][1]} |")
    return "\n".join(
        [*text, "", "`fedspm experiment table1 --seeds 0`: [all rows](../../results/table1/README.md).", ""]
    )


def table() -> str:
    """The README's: the default preset over the seeds that all rows have, without the paper's numbers, which are for
    other encoders and shifts."""
    panel = PLAN.panel(PANELS["default"]).model_copy(update={"paper": {}})
    methods = panel_methods(PLAN, records("table1"), panel.name)
    seeds = f"{named_seeds(methods[0].curves).capitalize()}:"
    return "\n".join([seeds, "", *beside_the_paper(panel, methods)])


def leads() -> str:
    """Of docs/results.md: how far FedSPM, 1× and C×, is ahead of every other row that shares several seeds with it."""
    trained = records("table1").of_panel(PANELS["default"], PLAN)
    titles = {line["method"]: line["title"] for line in trained}
    methods = {method.name: method for method in method_rows(trained)}
    text: list[str] = []
    for name in OURS:
        ours, rows = methods[name], []
        for other in (method for method in methods.values() if method.name not in OURS):
            shared = sorted(ours.curves.keys() & other.curves.keys())
            if len(shared) > 1:
                found = [paired_difference(ours.accuracy[key], other.accuracy[key]) for key in ("system", "average")]
                differences = [MARKDOWN.difference(*each) for each in found if each]
                rows.append([titles[other.name], ", ".join(map(str, shared)), *differences])
        said = f"How far {titles[name]} is ahead, in points, paired by seed, with its {CONFIDENCE:.0%} interval:"
        text += [said, "", *markdown_table(["of", "seeds", "system", "average"], rows), ""] if rows else []
    return "\n".join(text).strip()


def tables(experiment: str) -> str:
    """Those of docs/results.md: every panel that has a finished training, what to conclude, and what was not run."""
    plan, found = load_plan(experiment), records(experiment)
    if not found.lines:
        return "Not run yet."
    less = reductions(plan, found)
    text = marked(less)
    for panel in plan.panels:
        if found.of_panel(panel.name, plan):
            text += [f"### {panel.title}", "", *panel_tables(plan, found, panel)]
    if plan.picture == "convergence":
        text += [*bridge_table(plan, found), ""]
    conclusion = ROOT / "results" / experiment / "CONCLUSION.md"
    if conclusion.exists():
        text += [conclusion.read_text().strip(), ""]
    if absent := missing(plan, found):
        text += ["Not run:", "", *(f"- {each}" for each in absent)]
    else:
        text.append("Every training of the plan was run" + (", reduced as said above." if less else "."))
    return "\n".join(text)


def filled(page: str) -> str:
    """docs/results.md with its tables: each between `<!-- NAME -->` and `<!-- end -->`."""

    def written(found: re.Match[str]) -> str:
        text = leads() if found[1] == "leads" else tables(found[1])
        return f"<!-- {found[1]} -->\n\n{text}\n\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", written, page, flags=re.DOTALL)


def all_settings() -> str:
    """docs/settings.md: a table for every table of a configuration."""
    text = [
        "# Settings",
        "",
        "What a CONFIG.toml and `--set KEY=VALUE` may say; `fedspm settings [WORD]…` lists the same in the terminal. A",
        "default is followed by those of the preset `paper` and of data sets where they differ. A person wins over the",
        "preset, the preset over the data set. Every run folder has its whole configuration in `config.toml`.",
    ]
    tables: dict[str, list[list[str]]] = {}
    for each in settings():
        tables.setdefault(each.table, []).append([f"`{each.key}`", each.defaults, each.values, each.meaning])
    for name, rows in tables.items():
        text += ["", f"## {f'`{name}`' if name else 'Without a table'}", ""]
        text += markdown_table(["key", "default", "values", "meaning"], rows, words=4)
    return "\n".join(text) + "\n"


def main() -> None:
    (ROOT / "docs" / "settings.md").write_text(all_settings())
    for name in dict.fromkeys(map(algorithm_of, PAPER)):
        page = ROOT / "docs" / "algorithms" / f"{name.replace('-', '_')}.md"
        before, _, rest = page.read_text().partition(HEADING)
        following = re.search(r"^## .*", rest, re.MULTILINE | re.DOTALL)
        page.write_text(before.rstrip() + "\n\n" + section(name) + ("\n" + following.group() if following else ""))
    readme = ROOT / "README.md"
    between = r"(<!-- results -->\n\n).*?(\n\n!\[System accuracy over rounds\])"
    readme.write_text(re.sub(between, lambda found: found[1] + table() + found[2], readme.read_text(), flags=re.DOTALL))
    results = ROOT / "docs" / "results.md"
    results.write_text(filled(results.read_text()))


if __name__ == "__main__":
    main()
