"""What is kept of a finished training, and the rows of a table that are made of such records."""

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedspm.algorithms import algorithm_named
from fedspm.base.errors import FedSPMError
from fedspm.experiments.cell import Cell
from fedspm.experiments.statistics import ACCURACIES, Method
from fedspm.runs.config import Config
from fedspm.runs.folder import Run

Record = Mapping[str, Any]  # a finished training: a line of cells.jsonl


def record(cell: Cell) -> dict[str, Any]:
    """What is kept of a finished training: settings, versions, machine, and its metrics over rounds."""
    run = Run.open(cell.folder)
    return {
        "method": cell.row,
        "seed": cell.config.seed,
        "configuration": configuration_hash(cell.config),
        "settings": cell.config.to_dict(),
        "title": title(run),
        "clients": len(run.manifest["clients"]),
        **{name: run.manifest[name] for name in ("data_fingerprint", "fedspm", "versions", "machine", "created")},
        "metrics": run.metrics(),
    }


def title(run: Run) -> str:
    copies = max(encoder.get("copies", 1) for encoder in run.manifest["encoders"].values())
    return f"{algorithm_named(run.config.algorithm).__name__} ({'C' if copies > 1 else '1'}×)"


def method_rows(records: Sequence[Record]) -> list[Method]:
    """One row per method, in the order of the records. With the same seed all have to have seen the same data."""
    rows: dict[str, dict[int, Record]] = {}
    data: dict[int, str] = {}
    for each in records:
        seed, fingerprint = each["seed"], each["data_fingerprint"]
        if data.setdefault(seed, fingerprint) != fingerprint:
            raise FedSPMError(f"{each['method']} was trained on other data than the others with seed {seed}")
        rows.setdefault(each["method"], {})[seed] = each
    methods = [_method(name, by_seed) for name, by_seed in rows.items()]
    titles = [method.title for method in methods]
    most = max((len(by_seed) for by_seed in rows.values()), default=0)
    for i, method in enumerate(methods):
        title = method.title if titles.count(method.title) == 1 else f"{method.title}, {method.name}"
        seeds = len(rows[method.name])
        methods[i] = replace(method, title=title if seeds == most else f"{title}, {seeds} of {most} seeds")
    return methods


def _method(name: str, records: Mapping[int, Record]) -> Method:
    lines = {seed: each["metrics"] for seed, each in records.items()}
    last = {seed: line[-1] for seed, line in lines.items()}
    line = next(iter(last.values()))
    return Method(
        name=name,
        title=next(iter(records.values()))["title"],
        accuracy={
            short: {seed: metrics[key] for seed, metrics in last.items()}
            for short, key in ACCURACIES.items()
            if key in line
        },
        parameters=line["parameters"]["shared"],
        private=line["parameters"]["private"],
        bytes_down=line.get("bytes_down"),
        bytes_up=line.get("bytes_up"),
        seconds_per_round=statistics.mean(metrics["seconds"] / metrics["round"] for metrics in last.values()),
        curves=lines,
    )


def configuration_hash(config: Config) -> str:
    return hashlib.sha256(config.to_toml().encode()).hexdigest()[:16]


def record_lines(records: Sequence[Record]) -> str:
    """cells.jsonl"""
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records)
