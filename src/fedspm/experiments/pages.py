"""The documentation's numbers, written from results/*/cells.jsonl: README, docs/results.md and every page of
docs/algorithms that table 1 has a row for; what can be set, in docs/settings.md; and what leaves a client, in
docs/what-leaves.md.

`make pages`, after `fedspm experiment NAME`; tests/docs/test_docs.py checks that all say the same.
"""

import re
from pathlib import Path
from typing import Any

from fedspm.experiments.coverage import missing, named_seeds, reductions
from fedspm.experiments.plan import load_plan
from fedspm.experiments.records import Records
from fedspm.experiments.results import beside_the_paper, bridge_table, marked, panel_methods, panel_tables
from fedspm.experiments.statistics import CONFIDENCE, paired_difference
from fedspm.experiments.tables import MARKDOWN, markdown_table
from fedspm.experiments.training_record import method_rows
from fedspm.report.what_leaves import what_leaves_page
from fedspm.runs.settings_reference import settings

PANELS = {"default": "fashion-mnist", "paper": "fashion-mnist-paper"}
SEED = 0
KEYS = ("system", "average")
OURS = ("fedspm-1x", "fedspm-cx")
HEADING = "## Our number beside the paper’s"
ABOUT = (
    "Fashion-MNIST, 8 clients, 200 rounds, seed 0, test rows, per cent. The paper's figures are means over three",
    "seeds, for its own encoders and shifts, whose sizes it does not state.",
)


class Pages:
    """What the pages of a checkout say, from the cells that lie in it."""

    def __init__(self, root: Path):
        self.root = root
        self.plan = load_plan("table1")
        self.paper = self.plan.panel(PANELS["default"]).paper

    def records(self, experiment: str) -> Records:
        return Records(self.root / "results" / experiment / "cells.jsonl")

    def lines(self, panel: str) -> list[dict[str, Any]]:
        """The finished trainings of a panel of table 1 with the seed that the pages show."""
        return [line for line in self.records("table1").of_panel(panel, self.plan) if line["seed"] == SEED]

    def measured(self, panel: str) -> dict[str, tuple[str, ...]]:
        """System and average accuracy by method."""
        keys = ("system_accuracy", "average_accuracy")
        return {
            line["method"]: tuple(f"{100 * line['metrics'][-1][key]:.2f}" for key in keys) for line in self.lines(panel)
        }

    def section(self, name: str) -> str:
        """Of the page of one algorithm."""
        text = [
            HEADING,
            "",
            *ABOUT,
            "",
            "| | system | average |",
            "|---|---:|---:|",
        ]
        for method in (row for row in self.paper if algorithm_of(row) == name):
            which = " (C×)" if method.endswith("-cx") else " (1×)" if method.endswith("-1x") else ""
            for preset, panel in PANELS.items():
                system, average = self.measured(panel).get(method, ("not run", "not run"))
                text.append(f"| ours, {preset} preset{which} | {system} | {average} |")
            text.append(f"| the paper{which} | {self.paper[method][0]} | {self.paper[method][1]} |")
        return "\n".join(
            [*text, "", "`fedspm experiment table1 --seeds 0`: [all rows](../../results/table1/README.md).", ""]
        )

    def table(self) -> str:
        """The README's: the default preset over the seeds that all rows have, without the paper's numbers, which are
        for other encoders and shifts."""
        panel = self.plan.panel(PANELS["default"]).model_copy(update={"paper": {}})
        methods = panel_methods(self.plan, self.records("table1"), panel.name)
        seeds = f"{named_seeds(methods[0].curves).capitalize()}:"
        return "\n".join([seeds, "", *beside_the_paper(panel, methods)])

    def leads(self) -> str:
        """Of docs/results.md: how far FedSPM, 1× and C×, is ahead of every other row with several of its seeds."""
        trained = self.records("table1").of_panel(PANELS["default"], self.plan)
        titles = {line["method"]: line["title"] for line in trained}
        methods = {method.name: method for method in method_rows(trained)}
        text: list[str] = []
        for name in OURS:
            ours, rows = methods[name], []
            for other in (method for method in methods.values() if method.name not in OURS):
                shared = sorted(ours.curves.keys() & other.curves.keys())
                if len(shared) > 1:
                    found = [
                        paired_difference(ours.accuracy[key], other.accuracy[key]) for key in ("system", "average")
                    ]
                    differences = [MARKDOWN.difference(*each) for each in found if each]
                    rows.append([titles[other.name], ", ".join(map(str, shared)), *differences])
            said = f"How far {titles[name]} is ahead, in points, paired by seed, with its {CONFIDENCE:.0%} interval:"
            text += [said, "", *markdown_table(["of", "seeds", "system", "average"], rows), ""] if rows else []
        return "\n".join(text).strip()

    def tables(self, experiment: str) -> str:
        """Those of docs/results.md: every panel with a finished training, what to conclude, and what was not run."""
        plan, found = load_plan(experiment), self.records(experiment)
        if not found.lines:
            return "Not run yet."
        less = reductions(plan, found)
        text = marked(less)
        for panel in plan.panels:
            if found.of_panel(panel.name, plan):
                text += [f"### {panel.title}", "", *panel_tables(plan, found, panel)]
        if plan.picture == "convergence":
            text += [*bridge_table(plan, found), ""]
        conclusion = self.root / "results" / experiment / "CONCLUSION.md"
        if conclusion.exists():
            text += [conclusion.read_text().strip(), ""]
        if absent := missing(plan, found):
            text += ["Not run:", "", *(f"- {each}" for each in absent)]
        else:
            text.append("Every training of the plan was run" + (", reduced as said above." if less else "."))
        return "\n".join(text)

    def filled(self, page: str) -> str:
        """docs/results.md with its tables: each between `<!-- NAME -->` and `<!-- end -->`."""

        def written(found: re.Match[str]) -> str:
            text = self.leads() if found[1] == "leads" else self.tables(found[1])
            return f"<!-- {found[1]} -->\n\n{text}\n\n<!-- end -->"

        return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", written, page, flags=re.DOTALL)


def algorithm_of(method: str) -> str:
    return method.removesuffix("-1x").removesuffix("-cx")


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


def write_pages(root: Path) -> None:
    """Write all of them anew in the checkout at `root`; what stands around the numbers is kept."""
    pages = Pages(root)
    (root / "docs" / "settings.md").write_text(all_settings())
    (root / "docs" / "what-leaves.md").write_text(what_leaves_page())
    for name in dict.fromkeys(map(algorithm_of, pages.paper)):
        page = root / "docs" / "algorithms" / f"{name.replace('-', '_')}.md"
        before, _, rest = page.read_text().partition(HEADING)
        following = re.search(r"^## .*", rest, re.MULTILINE | re.DOTALL)
        page.write_text(
            before.rstrip() + "\n\n" + pages.section(name) + ("\n" + following.group() if following else "")
        )
    readme = root / "README.md"
    between = r"(<!-- results -->\n\n).*?(\n\n!\[System accuracy over rounds\])"
    table = pages.table()
    readme.write_text(re.sub(between, lambda found: found[1] + table + found[2], readme.read_text(), flags=re.DOTALL))
    results = root / "docs" / "results.md"
    results.write_text(pages.filled(results.read_text()))


if __name__ == "__main__":
    write_pages(Path.cwd())
