"""`fedspm bench tables`: FedSPM beside scikit-learn, alone and pooled, FedAvg and FedDRM, on small tables."""

import json
import statistics
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.base.files import write_atomically
from fedspm.bench.measure import machine
from fedspm.bench.table_data import HEART, HIDDEN, TABLES
from fedspm.data.federation import Federation
from fedspm.data.settings import IN_MEMORY
from fedspm.experiments.statistics import Seeds, paired_difference, spread
from fedspm.experiments.tables import markdown_table
from fedspm.federated.task import Task
from fedspm.report.terminal import console
from fedspm.runs.config import resolve
from fedspm.training.baselines import ROWS, baselines
from fedspm.training.loop import train

METHODS = ("fedspm", "fedavg", "feddrm")
SETTINGS = {"components": 2, "rounds": 30}  # for all methods and tables; the rest is the default
VERDICTS = ("table", "FedSPM − best of scikit-learn", "FedSPM − FedAvg", "seeds", "wanted")
COLUMNS = ("average", "system", "AUROC", "system AUROC")
POINTS = {"all": 0.01, "hidden": 0.03}  # how far FedSPM may lie behind, in accuracy

Record = dict[str, Any]


def bench_tables(
    out: Path, seeds: Sequence[int] | None = None, tables: Sequence[str] = tuple(TABLES)
) -> dict[str, Any]:
    """Train what is missing in `out`/tables.jsonl, one line per table, way of learning and seed, and write
    `out`/tables.md. The splits of a seed are the same for everybody."""
    if unknown := [name for name in tables if name not in TABLES]:
        raise FedSPMError(f"there is no table {unknown[0]!r}; known are {', '.join(TABLES)}")
    path = out / "tables.jsonl"
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    jobs = _jobs(tables, seeds)
    jobs.sort(key=lambda job: job[1] == METHODS[-1])  # what is needed most comes first
    done = {(line["table"], line["source"], line["seed"]) for line in records}
    for name, method, seed in track(
        [job for job in jobs if job not in done], "tables", console=console, transient=True
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sites with one class, which are meant
            federation = TABLES[name](seed)
            records += [
                {"table": name, "source": method, "seed": seed, **line} for line in _lines(federation, method, seed)
            ]
        write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in records))
        write_atomically(out / "tables.md", page(records))
    return {"machine": machine(), "records": records}


def _jobs(tables: Sequence[str], seeds: Sequence[int] | None = None) -> list[tuple[str, str, int]]:
    """Table, who learns it, and seed; heart disease has ten splits, the others five."""
    return [
        (name, source, seed)
        for name in tables
        for source in ("scikit-learn", *METHODS)
        for seed in (seeds or range(10 if name == HEART else 5))
    ]


def _missing(records: Sequence[Record]) -> list[str]:
    """What is not there of a whole run, in a line."""
    done = {(line["table"], line["source"], line["seed"]) for line in records}
    left = Counter(job[:2] for job in _jobs(tuple(TABLES)) if job not in done)
    said = ", ".join(f"{name} {source} ({count} seeds)" for (name, source), count in left.items())
    return ["", f"**Not finished:** {said}."] if said else []


def _lines(federation: Federation, method: str, seed: int) -> Iterator[Record]:
    if method == "scikit-learn":
        for each in baselines(federation, seed=seed):
            found = each.metrics()
            yield {"method": each.title, "rows": each.rows, "average": found["accuracy"], "AUROC": found["auroc"]} | (
                {"system": found["accuracy"], "system AUROC": found["auroc"]} if each.rows == "pooled" else {}
            )
        return
    grouped = {"workers": 1, "clients_at_once": len(federation.names), "eval_every": SETTINGS["rounds"]}
    config = resolve({"data": {"name": IN_MEMORY}, "algorithm": method, "seed": seed, **SETTINGS, **grouped})
    algorithm = build_algorithm(config, Task.of_federation(federation))
    metrics = train(config, algorithm, federation).history[-1]
    yield {
        "method": type(algorithm).__name__,
        "rows": "federated",
        "average": metrics["average_accuracy"],
        "system": metrics["system_accuracy"],
        "AUROC": metrics["scores"]["own"]["auroc"],
        "system AUROC": metrics["scores"]["system"]["auroc"],
    }


def page(records: Sequence[Record]) -> str:
    """tables.md"""
    names = [name for name in TABLES if any(line["table"] == name for line in records)]
    lines = [
        "# Tables",
        "",
        "`fedspm bench tables` (resumes; heart disease is looked for in `$FEDSPM_DATA/heart-disease`). Accuracy and",
        "AUROC in per cent, mean ± standard deviation over seeds, on the same splits for everybody. *average*: every",
        "row is answered at its own site; *system*: nobody says whose a row is. Federated methods with C = "
        f"{SETTINGS['components']}, {SETTINGS['rounds']}",
        "rounds and default settings, scikit-learn's learners with theirs. Tables of scikit-learn are divided along",
        "their second principal axis.",
        "",
        *markdown_table(VERDICTS, _verdicts(records, names)),
        "",
        "Differences of average accuracy in points with 95 % intervals, paired by seed. The best is that of highest",
        "mean among nine (three learners, alone, pooled, pooled with the site as a feature), chosen on the same test",
        "rows, which flatters it.",
        *_missing(records),
    ]
    for name in names:
        lines += [
            "",
            f"## {name[:1].upper()}{name[1:]}",
            "",
            *_table([line for line in records if line["table"] == name]),
        ]
    return "\n".join([*lines, ""])


def _table(records: Sequence[Record]) -> list[str]:
    rows = []
    for method in dict.fromkeys(line["method"] for line in records):
        rows.append([method, *(_figure(_by_seed(records, method, key)) for key in COLUMNS)])
    return markdown_table(("", *COLUMNS), rows)


def _by_seed(records: Sequence[Record], method: str, key: str) -> Seeds:
    mine = [line for line in records if line["method"] == method]
    return {line["seed"]: line[key] for line in mine if line.get(key) is not None}


def _figure(values: Mapping[int, float]) -> str:
    if not values:
        return "–"
    mean, deviation = spread(values)
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def _verdicts(records: Sequence[Record], names: Sequence[str]) -> list[list[str]]:
    rows = []
    for name in names:
        mine = [line for line in records if line["table"] == name]
        ours, averaged = (_by_seed(mine, method, "average") for method in ("FedSPM", "FedAvg"))
        others = [
            _by_seed(mine, title, "average") for title in dict.fromkeys(x["method"] for x in mine if x["rows"] in ROWS)
        ]
        if not ours or not others:
            continue
        best = max(others, key=lambda values: statistics.mean(values.values()))
        wanted = _wanted(name, mine, ours, best, averaged)
        rows.append([name, _difference(ours, best), _difference(ours, averaged), str(len(ours)), wanted])
    return rows


def _wanted(name: str, records: Sequence[Record], ours: Seeds, best: Seeds, averaged: Seeds) -> str:
    """Issue 31: within a point of the best, and ahead of FedAvg; with hidden groups at least boosting at each site."""
    mean = {key: statistics.mean(values.values()) for key, values in (("ours", ours), ("best", best))}
    if name in HIDDEN:
        boosting = _by_seed(records, "gradient boosting, each client alone", "average")
        system = statistics.mean(_by_seed(records, "FedSPM", "system").values())
        alone = statistics.mean(boosting.values())
        reached = mean["ours"] >= alone and system >= alone - POINTS["hidden"]
        figures = f"boosting alone {100 * alone:.1f}, average {100 * mean['ours']:.1f}, system {100 * system:.1f}"
        return f"{'reached' if reached else 'missed'}: {figures}"
    if name == HEART:
        return "; ".join(
            _first(records, key, at_home) for key, at_home in (("system", "average"), ("system AUROC", "AUROC"))
        )
    reached = mean["ours"] >= mean["best"] - POINTS["all"]
    ahead = bool(averaged) and mean["ours"] > statistics.mean(averaged.values())
    return "reached" if reached and ahead else "missed"


def _first(records: Sequence[Record], key: str, at_home: str) -> str:
    """Is FedSPM's system first? Against the others as systems, and against learners that know whose a row is."""
    titles = dict.fromkeys(line["method"] for line in records if line["method"] != "FedSPM")
    others = {title: _by_seed(records, title, key) or _by_seed(records, title, at_home) for title in titles}
    best = max(others, key=lambda title: statistics.mean(others[title].values()))
    ours = _by_seed(records, "FedSPM", key)
    first = statistics.mean(ours.values()) >= statistics.mean(others[best].values())
    return f"{key} {'first' if first else 'not first'}: {_difference(ours, others[best])} against {best}"


def _difference(these: Seeds, those: Seeds) -> str:
    found = paired_difference(these, those)
    if found is None:
        return "–"
    mean, half = found
    return f"{100 * mean:+.1f}" + ("" if half is None else f" ± {100 * half:.1f}")
