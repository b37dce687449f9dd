"""A comparison of methods over seeds: which trainings it takes, what each method reached, and statistics over seeds."""

import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from scipy.stats import t as student

from fedspm.algorithms import ALGORITHMS, algorithm_named
from fedspm.base.errors import FedSPMError
from fedspm.experiments.grid import Cell
from fedspm.runs.config import Config, resolve
from fedspm.runs.folder import Run

ACCURACIES = {"system": "system_accuracy", "average": "average_accuracy", "routing": "routing_accuracy"}
CONFIDENCE = 0.95
Seeds = Mapping[int, float]  # a figure for every seed
Name = TypeVar("Name", str, int)


@dataclass(frozen=True)
class Method:
    """One row of the table: what a method reached with every seed, and what it cost."""

    name: str
    title: str
    accuracy: Mapping[str, Seeds]
    parameters: int
    private: int
    bytes_down: int | None
    bytes_up: int | None
    seconds_per_round: float
    curves: Mapping[int, Sequence[Mapping[str, Any]]]


def comparison_cells(settings: Mapping[str, Any], rows: str, seeds: str, folder: Path) -> list[Cell]:
    """Every method with every seed, as run folders below `folder`; an option goes to the methods that have it."""
    if taken := {"seed", "algorithm", "variant"} & settings.keys():
        raise FedSPMError(f"{min(taken)} is what is compared; use --seeds and --algorithms instead")
    given = settings.get("options", {})
    options = {row: _options_of(row, given) for row in named_rows(rows)}
    if unknown := [key for key in given if not any(key in known for known in options.values())]:
        raise FedSPMError(f"options.{unknown[0]}: none of {', '.join(options)} has such an option")
    cells = []
    for seed in numbers("--seeds", seeds):
        for row, known in options.items():
            config = resolve({**settings, "options": known}, row_settings(row), {"seed": seed})
            algorithm_named(config.algorithm).checked_options(config)
            cells.append(Cell(row, config, folder / "runs" / f"{row}-seed{seed}"))
    return cells


def row_settings(row: str) -> dict[str, str]:
    """The settings of a row of a table: the name of a method, with -1x or -cx where it has variants."""
    algorithm, _, variant = row.rpartition("-") if row.endswith(("-1x", "-cx")) else (row, "", "")
    if variant and not algorithm_named(algorithm).variants:
        raise FedSPMError(f"--algorithms: {algorithm} has no variants, so there is no {row}; write {algorithm}")
    return {"algorithm": algorithm} | ({"variant": variant} if variant else {})


def _options_of(row: str, given: Mapping[str, Any]) -> dict[str, Any]:
    known = algorithm_named(row_settings(row)["algorithm"]).Options.model_fields
    return {key: value for key, value in given.items() if key in known}


def slowest_first(cells: Sequence[Cell]) -> list[Cell]:
    """Panel by panel, seed by seed, and the long trainings, which stand last in a table, begun first: no core waits at
    the end."""
    groups = list(dict.fromkeys((cell.panel, cell.config.seed) for cell in cells))
    return sorted(cells, key=lambda cell: (groups.index((cell.panel, cell.config.seed)), -cells.index(cell)))


def named_rows(text: str) -> list[str]:
    """`all` is the paper's table: the nine baselines, and FedSPM with shared encoders and with C of them."""
    if text == "all":
        return [*(name for name in ALGORITHMS if name != "fedspm"), "fedspm-1x", "fedspm-cx"]
    rows = [row.strip() for row in text.split(",") if row.strip()]
    if not rows or len(set(rows)) < len(rows):
        raise FedSPMError(f"--algorithms {text!r}: write all, or different names with commas between them")
    return rows


def numbers(option: str, text: str) -> list[int]:
    """Different whole numbers from the command line."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found) or min(found) < 0:
        raise FedSPMError(
            f"{option} {text!r}: write different whole numbers with commas between them, for instance 0,1,2"
        )
    return found


Record = Mapping[str, Any]  # a finished training: a line of cells.jsonl


def record(cell: Cell) -> dict[str, Any]:
    """What is kept of a finished training: settings, versions, machine, and its metrics over rounds."""
    run = Run.open(cell.folder)
    return {
        "method": cell.row,
        "seed": cell.config.seed,
        "configuration": configuration_hash(cell.config),
        "settings": cell.config.said(),
        "title": title(run),
        "clients": len(run.manifest["clients"]),
        **{name: run.manifest[name] for name in ("data_fingerprint", "fedspm", "versions", "machine", "created")},
        "metrics": run.metrics(),
    }


def title(run: Run) -> str:
    copies = max(encoder.get("copies", 1) for encoder in run.manifest["encoders"].values())
    return f"{algorithm_named(run.config.algorithm).__name__} ({'C' if copies > 1 else '1'}×)"


def method_rows(records: Sequence[Record]) -> list[Method]:
    """Finished trainings, one row per method, in their order. With one seed all must have seen the same data."""
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


# -- statistics over seeds -------------------------------------------------------------------------------------------


def spread(values: Seeds) -> tuple[float, float | None]:
    """Mean and standard deviation (n − 1) over seeds; None of one seed."""
    figures = list(values.values())
    return statistics.mean(figures), statistics.stdev(figures) if len(figures) > 1 else None


def ranks(methods: Sequence[Method], metric: str) -> dict[str, int]:
    """1 for the highest mean, equal means sharing a rank; a mean over fewer or other seeds is not ranked."""
    means = {method.name: spread(method.accuracy[metric])[0] for method in _complete(methods, metric)}
    return {name: 1 + sum(other > mean for other in means.values()) for name, mean in means.items()}


def _complete(methods: Sequence[Method], metric: str) -> list[Method]:
    complete = with_most_seeds(
        {method.name: method.accuracy[metric] for method in methods if metric in method.accuracy}
    )
    return [method for method in methods if method.name in complete]


def with_most_seeds(values: Mapping[Name, Seeds]) -> list[Name]:
    """Whose means can be compared: a seed is other data, so only those over the same seeds, as many as there are."""
    seeds = Counter(frozenset(by_seed) for by_seed in values.values())
    most = max(seeds, key=lambda these: (len(these), seeds[these]), default=frozenset())
    return [name for name, by_seed in values.items() if by_seed.keys() == most]


def paired_difference(these: Seeds, those: Seeds) -> tuple[float, float | None] | None:
    """Mean of the differences with the same seed, and the half width of its 95 % interval (Student's t)."""
    differences = [these[seed] - those[seed] for seed in these if seed in those]
    if not differences:
        return None
    mean = statistics.mean(differences)
    if len(differences) == 1:
        return mean, None
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, len(differences) - 1))
    return mean, quantile * statistics.stdev(differences) / len(differences) ** 0.5


def best(methods: Sequence[Method], metric: str) -> Method:
    return max(_complete(methods, metric), key=lambda method: spread(method.accuracy[metric])[0])


# -- one line per cell -------------------------------------------------------------------------------------------------


def configuration_hash(config: Config) -> str:
    return hashlib.sha256(config.to_toml().encode()).hexdigest()[:16]


def record_lines(records: Sequence[Record]) -> str:
    """cells.jsonl"""
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records)
