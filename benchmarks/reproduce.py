"""`make reproduce`: train a slice of table 1 anew and compare it with the committed cells.

FedAvg and FedSPM (1×) on Fashion-MNIST, seed 0, the first 40 of 200 rounds, default preset. Where the order of a sum
differs, as on another processor or with other kernels than those of the day on which a cell was trained, rounding does,
and a training amplifies it; so a point and a half is allowed. Exits with 1 if anything differs by more.
"""

import shutil
import sys
from pathlib import Path

from fedspm.base.errors import FedSPMError
from fedspm.experiments import TerminalProgress, run_experiment
from fedspm.experiments.records import Records
from fedspm.experiments.tables import markdown_table

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "runs" / "reproduce"
PANEL, ROWS, SEED, ROUNDS = "fashion-mnist", ("fedavg", "fedspm-1x"), 0, 40
KEYS = ("system_accuracy", "average_accuracy", "routing_accuracy")
ALLOWED = 0.015


def main() -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)  # what an earlier call has trained proves nothing of today's code
    run_experiment(
        "table1",
        panels=[PANEL],
        methods=ROWS,
        seeds=[SEED],
        rounds=ROUNDS,
        out=FOLDER,
        progress=TerminalProgress(),
    )
    committed, again = (Records(folder / "table1" / "cells.jsonl").lines for folder in (ROOT / "results", FOLDER))
    rows, furthest = [], 0.0
    for row in ROWS:
        then, now = (
            next(line for line in lines[PANEL, row, SEED]["metrics"] if line["round"] == ROUNDS)
            for lines in (committed, again)
        )
        for key in (key for key in KEYS if key in then):
            difference = now[key] - then[key]
            furthest = max(furthest, abs(difference))
            rows.append([f"{row} {key}", f"{then[key]:.4f}", f"{now[key]:.4f}", f"{difference:+.4f}"])
    print("\n".join(["", *markdown_table([f"round {ROUNDS}", "committed", "now", "difference"], rows), ""]))
    print("reproduced" if furthest <= ALLOWED else f"differs by {furthest:.4f}, allowed is {ALLOWED}")
    return int(furthest > ALLOWED)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FedSPMError as error:
        sys.exit(str(error))
