"""Lines of cells.jsonl without the trainings."""

import json

from fedspm.experiments.records import Records
from fedspm.experiments.statistics import Method


def line(cell, system=0.5, **more):
    """A line of cells.jsonl as a training would leave it."""
    metrics = {"system_accuracy": system, "average_accuracy": system + 0.1, "routing_accuracy": 0.9}
    costs = {"parameters": {"shared": 10, "private": 5}, "bytes_down": 1, "bytes_up": 1, "seconds": 4.0}
    last = cell.config.rounds
    return {
        "panel": cell.panel,
        "method": cell.row,
        "seed": cell.config.seed,
        "settings": cell.config.to_dict(),
        "title": cell.row.title(),
        "data_fingerprint": "same",
        "fedspm": "0",
        "versions": {"python": "3", "torch": "2"},
        "machine": {"processor": "abacus", "cores": 1},
        "created": "2026-01-01T00:00:00",
        "metrics": [{"round": number, **metrics, **costs} for number in (1, last)],
        "diagnostics": [],
    } | more


def recorded(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return Records(path)


def method(name: str, *system: float, routing: tuple[float, ...] = ()) -> Method:
    accuracy = {"system": dict(enumerate(system)), "average": dict(enumerate(system))}
    if routing:
        accuracy["routing"] = dict(enumerate(routing))
    return Method(name, name.title(), {}, accuracy, 10, 0, 1_000_000, 2_000_000, 0.5)
