"""`fedspm compare --baselines`: should I federate? Each client alone, pooled, and federated methods, over seeds."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspm.base.files import write_atomically
from fedspm.experiments.cell import Cell
from fedspm.experiments.statistics import Method, Seeds, paired_difference, spread
from fedspm.experiments.tables import markdown_table
from fedspm.report.should_i_federate import verdict
from fedspm.runs.folder import Run
from fedspm.training.baselines import baselines

METHODS = ("local", "fedavg", "feddrm", "fedspm-1x")  # what `--baselines` trains where no --algorithms are named
RECORDS = "baselines.jsonl"  # what scikit-learn reached, one line per seed
SYSTEM, AVERAGE, AUROC = "system", "average", "AUROC"
HEADINGS = ("", AVERAGE, SYSTEM, AUROC)


@dataclass(frozen=True)
class Row:
    """What one way of learning reached, by seed: rows answered at home (`average`), by whom it may (`system`)."""

    name: str
    title: str
    figures: Mapping[str, Seeds]  # average, system, AUROC of the answers at home
    clients: Mapping[str, Seeds]  # accuracy at home


def learn_baselines(cells: Sequence[Cell], folder: Path) -> list[dict[str, Any]]:
    """What scikit-learn makes of the rows of every seed that is trained; known seeds are not learnt again."""
    path = folder / RECORDS
    known = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    for cell in {cell.config.seed: cell for cell in cells if cell.finished()}.values():
        run = Run.open(cell.folder)
        seed, fingerprint = cell.config.seed, run.manifest["data_fingerprint"]
        if len(run.task.shape) != 1 or any((line["seed"], line["data"]) == (seed, fingerprint) for line in known):
            continue
        known = [line for line in known if line["seed"] != seed]
        for found in baselines(run.federation(), seed=seed):
            known.append(
                {"seed": seed, "data": fingerprint, "title": found.title, "rows": found.rows} | found.metrics()
            )
        write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in known))
    return known


def baseline_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Pooled learners need not know whose a row is, so that their system accuracy is their average one; those that take
    the client as a feature must, and those of each client alone have nobody who chooses among them."""
    titles = dict.fromkeys(line["title"] for line in records)
    return [_row(title, [line for line in records if line["title"] == title]) for title in titles]


def _row(title: str, lines: Sequence[Mapping[str, Any]]) -> Row:
    average = {line["seed"]: line["accuracy"] for line in lines}
    area = {line["seed"]: line["auroc"] for line in lines if line["auroc"] is not None}
    figures = {AVERAGE: average, AUROC: area} | ({SYSTEM: average} if lines[0]["rows"] == "pooled" else {})
    return Row(lines[0]["rows"], title, figures, _by_client({line["seed"]: line for line in lines}))


def method_row(method: Method) -> Row:
    last = {seed: lines[-1] for seed, lines in method.curves.items()}
    areas = {seed: line.get("scores", {}).get("own", {}).get("auroc") for seed, line in last.items()}
    figures = {
        AVERAGE: method.accuracy["average"],
        SYSTEM: method.accuracy["system"],
        AUROC: {seed: area for seed, area in areas.items() if area is not None},
    }
    return Row(method.name, method.title, figures, _by_client(last))


def _by_client(lines: Mapping[int, Mapping[str, Any]]) -> dict[str, Seeds]:
    names = dict.fromkeys(name for line in lines.values() for name in line["clients"])
    return {
        name: {seed: line["clients"][name]["accuracy"] for seed, line in lines.items() if name in line["clients"]}
        for name in names
    }


def table(rows: Sequence[Row]) -> list[list[str]]:
    return [[row.title, *(_figure(row.figures.get(key)) for key in HEADINGS[1:])] for row in rows]


def client_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the accuracy at home, by client."""
    names = list(dict.fromkeys(name for row in rows for name in row.clients))
    return ["", *names], [[row.title, *(_figure(row.clients.get(name)) for name in names)] for row in rows]


def _figure(values: Seeds | None) -> str:
    if not values:
        return "–"
    mean, deviation = spread(values)
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def sentences(rows: Sequence[Row]) -> list[str]:
    """What federation, routing and the mixture each bring, paired by seed; and when none does."""
    by_name = {row.name.removesuffix("-1x").removesuffix("-cx"): row for row in rows}
    alone = _best(rows, AVERAGE, lambda row: row.name in ("alone", "local"))
    pooled = _best(rows, AVERAGE, lambda row: row.name.startswith("pooled"))
    federated = _best(rows, AVERAGE, lambda row: row.name != "local" and not _outside(row))
    pairs = [
        ("Federation", federated, alone, AVERAGE, "federation pays here", "each client is better off alone"),
        ("Averaging", by_name.get("fedavg"), by_name.get("local"), AVERAGE, "it pays here", "it does harm here"),
        ("Routing", by_name.get("feddrm"), by_name.get("fedavg"), SYSTEM, "it pays here", "it does harm here"),
        ("The mixture", by_name.get("fedspm"), by_name.get("feddrm"), AVERAGE, "it pays here", "it does harm here"),
        ("Not pooling", federated, pooled, AVERAGE, "the federation is ahead", "it costs something here"),
    ]
    found = []
    for what, this, that, key, better, worse in pairs:
        if this is None or that is None:
            continue
        if (difference := paired_difference(this.figures[key], that.figures[key])) is not None:
            found.append(f"{what} ({this.title} minus {that.title}, {key}): {verdict(difference, better, worse)}")
    if found:
        found.append(
            "The best of several is chosen on the test rows it is compared on, which flatters it; seeds share rows, "
            "so that intervals are somewhat too short."
        )
    return found


def _outside(row: Row) -> bool:
    """Is it a learner of scikit-learn?"""
    return row.name == "alone" or row.name.startswith("pooled")


def _best(rows: Sequence[Row], key: str, which: Callable[[Row], bool]) -> Row | None:
    chosen = [row for row in rows if which(row) and row.figures.get(key)]
    return max(chosen, key=lambda row: spread(row.figures[key])[0], default=None)


def page(rows: Sequence[Row], said: Sequence[str], command: str) -> str:
    """federate.md"""
    headings, by_client = client_table(rows)
    return "\n".join(
        [
            "# Should I federate?",
            "",
            f"`{command}`",
            "",
            *(f"- {sentence}" for sentence in said),
            "",
            "Per cent, mean ± standard deviation over seeds. *average*: every row is answered at its own client;",
            "*system*: nobody says whose a row is; AUROC is of the answers at home.",
            "",
            *markdown_table(HEADINGS, table(rows)),
            "",
            "Accuracy at home, by client:",
            "",
            *markdown_table(headings, by_client),
            "",
        ]
    )
