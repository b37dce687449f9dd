"""Write what results/table1/cells.jsonl says into the README and into every page of docs/algorithms.

`python benchmarks/pages.py`, after `fedspm experiment table1`; tests/test_docs.py checks that all say the same.
"""

import re
from pathlib import Path

from fedspm.comparison import method_rows
from fedspm.experiments import load_plan
from fedspm.experiments.records import Records
from fedspm.tables import MARKDOWN, REACHED, accuracy_rows, markdown_table

ROOT = Path(__file__).parents[1]
PLAN = load_plan("table1")
PANELS = {"default": "fashion-mnist", "paper": "fashion-mnist-paper"}
SEED = 0
HEADING = "## Our number beside the paper’s"
# Table 1 of the paper, Fashion-MNIST: system and average accuracy in per cent, mean ± standard deviation of 3 seeds.
PAPER = {
    "fedavg": ("39.15 ± 1.31", "39.15 ± 1.31"),
    "fedprox": ("39.14 ± 1.32", "39.14 ± 1.32"),
    "fedavg-ft": ("35.42 ± 1.90", "50.55 ± 1.04"),
    "ditto": ("34.30 ± 2.42", "54.87 ± 1.18"),
    "cluster-fl": ("31.36 ± 2.20", "55.77 ± 2.32"),
    "fedbabu": ("34.27 ± 1.19", "38.36 ± 1.76"),
    "fedem": ("29.73 ± 2.68", "38.79 ± 0.19"),
    "fedgmm": ("31.98 ± 1.99", "38.34 ± 0.58"),
    "feddrm": ("53.68 ± 1.01", "53.69 ± 1.01"),
    "fedspm-1x": ("58.82 ± 0.61", "58.86 ± 0.62"),
    "fedspm-cx": ("58.23 ± 0.17", "58.32 ± 0.18"),
}


def lines(panel: str) -> list[dict]:
    """The finished trainings of a panel with the seed that the pages show."""
    records = Records(ROOT / "results" / "table1" / "cells.jsonl")
    return [line for line in records.of_panel(panel, PLAN) if line["seed"] == SEED]


def measured(panel: str) -> dict[str, tuple[str, ...]]:
    """System and average accuracy by method."""
    keys = ("system_accuracy", "average_accuracy")
    return {line["method"]: tuple(f"{100 * line['metrics'][-1][key]:.2f}" for key in keys) for line in lines(panel)}


def section(name: str) -> str:
    text = [
        HEADING,
        "",
        "Fashion-MNIST, 8 clients, 200 rounds, seed 0, test rows, per cent. The paper's figures are means over three",
        "seeds, for its own encoders and shifts, whose sizes it does not state.",
        "",
        "| | system | average |",
        "|---|---:|---:|",
    ]
    for method in (row for row in PAPER if row.removesuffix("-1x").removesuffix("-cx") == name):
        which = " (C×)" if method.endswith("-cx") else " (1×)" if method.endswith("-1x") else ""
        for preset, panel in PANELS.items():
            system, average = measured(panel).get(method, ("not run", "not run"))
            text.append(f"| ours, {preset} preset{which} | {system} | {average} |")
        text.append(f"| the paper{which} | {PAPER[method][0]} | {PAPER[method][1]} |")
    return "\n".join(
        [*text, "", "`fedspm experiment table1 --seeds 0`: [all rows](../../results/table1/README.md).", ""]
    )


def table() -> str:
    """The README's: all methods with the default preset."""
    return "\n".join(markdown_table(REACHED, accuracy_rows(method_rows(lines(PANELS["default"])), MARKDOWN)))


def main() -> None:
    for name in dict.fromkeys(method.removesuffix("-1x").removesuffix("-cx") for method in PAPER):
        page = ROOT / "docs" / "algorithms" / f"{name.replace('-', '_')}.md"
        before, _, rest = page.read_text().partition(HEADING)
        following = re.search(r"^## .*", rest, re.MULTILINE | re.DOTALL)
        page.write_text(before.rstrip() + "\n\n" + section(name) + ("\n" + following.group() if following else ""))
    readme = ROOT / "README.md"
    marked = r"(<!-- results -->\n\n).*?(\n\n!\[Accuracy over rounds\])"
    readme.write_text(re.sub(marked, lambda found: found[1] + table() + found[2], readme.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
