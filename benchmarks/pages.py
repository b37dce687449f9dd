"""Write the section "Our number beside the paper's" of every docs/algorithms page from results/*/table.csv.

`python benchmarks/pages.py`, after `fedspm compare`; tests/test_docs.py checks that the pages say what the tables say.
"""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "fashion-mnist"
COMMAND = "fedspm compare --data fashion-mnist --preset {preset} --seeds 0 --out results/fashion-mnist/{preset}"
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


def measured(preset: str) -> dict[str, tuple[str, str]]:
    """System and average accuracy by method, from the table of a preset; empty if it was not made."""
    path = RESULTS / preset / "table.csv"
    if not path.exists():
        return {}
    with open(path) as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] == "0"]
    return {
        row["method"]: tuple(f"{100 * float(row[key]):.2f}" for key in ("system_accuracy", "average_accuracy"))
        for row in rows
    }


def section(name: str) -> str:
    methods = [method for method in PAPER if method.removesuffix("-1x").removesuffix("-cx") == name]
    tables = {preset: measured(preset) for preset in ("default", "paper")}
    lines = [
        HEADING,
        "",
        "Fashion-MNIST, 8 clients, 200 rounds, seed 0, test rows, per cent. The paper's figures are means over three",
        "seeds, for its own encoders and shifts, whose sizes it does not state.",
        "",
        "| | system | average |",
        "|---|---:|---:|",
    ]
    for method in methods:
        which = " (C×)" if method.endswith("-cx") else " (1×)" if method.endswith("-1x") else ""
        for preset, table in tables.items():
            system, average = table.get(method, ("not run", "not run"))
            lines.append(f"| ours, {preset} preset{which} | {system} | {average} |")
        lines.append(f"| the paper{which} | {PAPER[method][0]} | {PAPER[method][1]} |")
    shown = [preset for preset, table in tables.items() if any(method in table for method in methods)]
    for preset in shown:
        lines += ["", f"`{COMMAND.format(preset=preset)}`: [all rows](../../results/fashion-mnist/{preset}/table.md)."]
    return "\n".join(lines) + "\n"


def main() -> None:
    for name in dict.fromkeys(method.removesuffix("-1x").removesuffix("-cx") for method in PAPER):
        page = ROOT / "docs" / "algorithms" / f"{name.replace('-', '_')}.md"
        text = page.read_text()
        before, _, rest = text.partition(HEADING)
        following = re.search(r"^## .*", rest, re.MULTILINE | re.DOTALL)
        page.write_text(before.rstrip() + "\n\n" + section(name) + ("\n" + following.group() if following else ""))


if __name__ == "__main__":
    main()
