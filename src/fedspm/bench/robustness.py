"""`fedspm bench robustness`: what one liar among the clients does to a training, for every rule of `robust`.

Every lie of `fedspm.testing.liars` is told by one client in all rounds, and the trained system is evaluated on
everybody's test rows, the liar's too. A finished training is one line in a file, and is not trained again.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError, TrainingFailed
from fedspm.bench.measure import machine
from fedspm.data.federation import Federation
from fedspm.federated.task import Task
from fedspm.report.terminal import console
from fedspm.runs.config import Config, resolve
from fedspm.testing.liars import LIES, Lie, LyingEngine
from fedspm.training.loop import train

HONEST = "nobody lies"
RULES = ("norm", "none", "median", "trimmed", "krum")
POINTS = 3.0  # of system accuracy, that a lie may cost


def bench_robustness(
    settings: Mapping[str, Any] | None = None,
    out: Path = Path("robustness.jsonl"),
    rules: Sequence[str] = RULES,
    lies: Sequence[str] = tuple(LIES),
) -> dict[str, Any]:
    """Trainings with one liar each, by rule and lie; those that `out` has are not done again."""
    config = resolve(settings or {})
    for lie in lies:
        if lie not in LIES:
            raise FedSPMError(f"there is no lie {lie!r}; known are: {', '.join(LIES)}")
    with console.status("reading the data"):
        federation = config.federation()
    liar = usual_client(federation)
    about = {"data": config.data.title, "seed": config.seed, "rounds": config.rounds, "liar": liar}
    known = read_records(out, about)
    out.parent.mkdir(parents=True, exist_ok=True)
    for rule in rules:
        for lie in (HONEST, *lies):
            if (rule, lie) in known:
                continue
            with console.status(f"robust = {rule}: {lie}"):
                found = about | {"rule": rule, "lie": lie} | attacked(config, federation, rule, liar, LIES.get(lie))
            known[rule, lie] = found
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found, ensure_ascii=False) + "\n")
    wanted = [known[rule, lie] for rule in rules for lie in (HONEST, *lies)]
    return {"algorithm": config.algorithm, **about, "machine": machine(), "records": wanted}


def usual_client(federation: Federation) -> str:
    """The client with the median number of rows: the lower one of two."""
    order = sorted(range(len(federation.names)), key=lambda i: (federation.counts[i], i))
    return federation.names[order[(len(order) - 1) // 2]]


def attacked(config: Config, federation: Federation, rule: str, liar: str, lie: Lie | None) -> dict[str, Any]:
    """A training in which one client lies, or nobody: accuracies at the end, and how often the liar was refused."""
    config = config.model_copy(update={"robust": rule, "eval_every": config.rounds})
    algorithm = build_algorithm(config, Task.of_federation(federation))
    told = {} if lie is None else {liar: lie}
    options = {"seed": config.seed, "workers": config.workers, "device": config.device}
    with LyingEngine(federation, liars=told, **options) as engine:
        try:
            training = train(config, algorithm, federation, engine=engine)
        except TrainingFailed as error:
            return {"failed": str(error)}
    metrics = training.metrics
    assert metrics is not None
    honest = {name: each for name, each in metrics["clients"].items() if name != liar}
    rows = sum(each["rows"] for each in honest.values())
    return {
        "system": round(metrics["system_accuracy"], 4),
        "routing": round(metrics.get("routing_accuracy", 0.0), 4),
        "honest": round(sum(each["rows"] * each["system_accuracy"] for each in honest.values()) / rows, 4),
        "refused": training.refused[liar],
        "others_refused": sum(count for name, count in training.refused.items() if name != liar),
    }


def read_records(path: Path, about: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """What was trained before with the same data, seed, rounds and liar, by rule and lie."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines if line.strip()]
    return {
        (each["rule"], each["lie"]): each
        for each in records
        if all(each.get(key) == value for key, value in about.items())
    }


def attack_table(records: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: per lie and rule the system accuracy, its change in points, and refused rounds."""
    rules = list(dict.fromkeys(each["rule"] for each in records))
    lies = list(dict.fromkeys(each["lie"] for each in records))
    by_key = {(each["rule"], each["lie"]): each for each in records}
    rows = []
    for lie in lies:
        rows.append([lie, *(_cell(by_key.get((rule, lie)), by_key.get((rule, HONEST))) for rule in rules)])
    return ["one client of eight" if len(rules) > 1 else "lie", *rules], rows


def _cell(found: Mapping[str, Any] | None, honest: Mapping[str, Any] | None) -> str:
    if found is None:
        return "not run"
    if "failed" in found:
        return "stopped"
    text = f"{found['system']:.3f} / {found['routing']:.3f}"
    if honest is not None and "failed" not in honest and found is not honest:
        text += f" ({100 * (found['system'] - honest['system']):+.1f})"
    return text + (f" r{found['refused']}" if found["refused"] else "")


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """The table for docs/robustness.md."""
    headings, rows = attack_table(records)
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
