"""Tabulate the metrics of run folders, at round 40 and at the last: python benchmarks/accuracy_table.py RUN..."""

import sys
from pathlib import Path

from fedspm import load_run

COLUMNS = ("system_accuracy", "average_accuracy", "routing_accuracy", "component_purity")

print("| run | round | " + " | ".join(name.replace("_", " ") for name in COLUMNS) + " | seconds |")
print("|---|---:|" + "---:|" * (len(COLUMNS) + 1))
for path in map(Path, sys.argv[1:]):
    metrics = load_run(path).metrics()
    for line in [line for line in metrics if line["round"] == 40] + [
        line for line in metrics[-1:] if line["round"] != 40
    ]:
        values = " | ".join(f"{line[name]:.4f}" for name in COLUMNS)
        print(f"| {path.name} | {line['round']} | {values} | {line['seconds']:.0f} |")
