"""Timing sides against each other, and what machine it was."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from rich.progress import track

from fedspm.report.terminal import console

Side = Callable[[], object]


CLOCKS: dict[str, Callable[[], float]] = {"seconds": time.perf_counter, "cpu_seconds": time.process_time}


def alternated(sides: Mapping[str, Side], repeats: int, times: int = 1) -> dict[str, list[float]]:
    """Wall seconds of every side, `repeats` of them after a warm-up, one side after the other; `times` calls each."""
    return by_both_clocks(sides, repeats, times)["seconds"]


def by_both_clocks(sides: Mapping[str, Side], repeats: int, times: int = 1) -> dict[str, dict[str, list[float]]]:
    """The same by the clock and in CPU seconds of this process, all of its threads together."""
    found: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in sides} for clock in CLOCKS}
    for repeat in track(range(repeats + 1), "alternating", console=console, transient=True):
        for name, side in sides.items():
            began = {clock: now() for clock, now in CLOCKS.items()}
            for _ in range(times):
                side()
            if repeat:
                for clock, now in CLOCKS.items():
                    found[clock][name].append((now() - began[clock]) / times)
    return found


def ratio(these: Sequence[float], those: Sequence[float]) -> float:
    """The median over repeats of the ratio of neighbours in time."""
    return round(statistics.median(this / that for this, that in zip(these, those, strict=True)), 4)


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
    }
