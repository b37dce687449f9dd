"""New data for a trained run: answers to many rows as one table, and metrics on rows that bring their labels."""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedspm.base.errors import FedSPMError
from fedspm.base.files import write_atomically
from fedspm.data.federation import Federation
from fedspm.data.images import ENDINGS as IMAGES
from fedspm.data.newcomer import read_labelled
from fedspm.data.part import Part
from fedspm.federated.evaluation import Model, evaluate, require_finite_answers
from fedspm.federated.metrics import balanced_accuracy, scores
from fedspm.nn.sgd import chunks
from fedspm.runs.folder import Run
from fedspm.training.membership import row_schema
from fedspm.training.predict import read_queries

OUTSIDE = "outside"  # rows that do not say whose they are
SURE = 0.5  # answers with less probability than this are counted as unsure


@dataclass(frozen=True)
class Answers:
    """What was said of every row, in order: by column, so that a million rows are a few arrays."""

    file: list[str]
    row: list[int | None]  # counted from one; None of an image
    prediction: np.ndarray
    probabilities: np.ndarray  # (n, K)
    classes: list[str]
    client: np.ndarray | None  # who answered; None where all clients did, by the mean of their probabilities
    posterior: np.ndarray | None  # (n, m)
    clients: list[str]

    def __len__(self) -> int:
        return len(self.row)

    def columns(self) -> dict[str, Sequence[Any]]:
        """As a table: file, row, prediction, client, one column per class and one per client."""
        found: dict[str, Sequence[Any]] = {"file": self.file, "row": self.row, "prediction": self.prediction.tolist()}
        if self.client is not None:
            found["client"] = self.client.tolist()
        found |= {f"P({label})": self.probabilities[:, k].tolist() for k, label in enumerate(self.classes)}
        if self.posterior is not None:
            found |= {f"P(client {name})": self.posterior[:, i].tolist() for i, name in enumerate(self.clients)}
        return found

    def summary(self) -> list[str]:
        """A few lines about many rows."""
        lines = [f"{len(self):,} rows", f"predicted  {_counted(self.prediction)}"]
        if self.client is not None:
            lines.append(f"by client  {_counted(self.client)}")
        sure = self.probabilities.max(1)
        unsure = f", below {SURE} on {int((sure < SURE).sum()):,}" if (sure < SURE).any() else ""
        return [*lines, f"sure       {sure.mean():.2f} on average{unsure}"]


def _counted(values: np.ndarray) -> str:
    return ", ".join(f"{value} {count:,}" for value, count in Counter(values.tolist()).most_common())


@torch.no_grad()
def predict(run: Run, files: Sequence[Path], client: str | None = None) -> Answers:
    """Answers to tables, archives, images and folders of images: of the client each row is routed to, of the one that
    is named, or, by a method that cannot route, the mean over all clients."""
    model = run.model()
    names = list(model.algorithm.task.names)
    if client is not None and client not in names:
        raise FedSPMError(f"{run.path} has no client {client!r}; its clients are {', '.join(names)}")
    queries = read_queries(run, list(_files(files)))
    said, over_clients = [], []
    for x in chunks(torch.stack([query.x for query in queries])):
        embedding = model.embed(x)
        if client is None:
            posterior, probabilities = model.answer(embedding)
        else:
            posterior, probabilities = None, model.local(names.index(client), embedding)
        said.append(probabilities.cpu())
        over_clients += [] if posterior is None else [posterior]
    found = torch.cat(said)
    require_finite_answers(found, "P(class | x)", [str(query) for query in queries])
    routed = torch.cat(over_clients).numpy(force=True) if over_clients else None
    who = None if routed is None else np.asarray(names)[routed.argmax(1)]
    return Answers(
        [str(query.file) for query in queries],
        [query.row for query in queries],
        run.classes[found.argmax(1).numpy()],
        found.numpy(),
        [str(label) for label in run.classes.tolist()],
        who if client is None else np.full(len(queries), client),
        routed,
        names,
    )


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """Folders stand for the images in them, wherever they lie."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(each for each in path.rglob("*") if each.suffix.lower() in IMAGES and each.is_file())
        if not found:
            raise FedSPMError(f"{path} holds no images; give image files, a folder of them, or a table")
        yield from found


def write_answers(path: Path, answers: Answers) -> None:
    """A table: .csv or .parquet."""
    columns = answers.columns()
    if path.suffix.lower() == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([list(columns), *zip(*columns.values(), strict=True)])
        write_atomically(path, text.getvalue(), private=True)
    elif path.suffix.lower() == ".parquet":
        write_atomically(path, _parquet(columns, path), private=True)
    else:
        raise FedSPMError(f"--out {path}: give a file that ends in .csv or .parquet")


def _parquet(columns: Mapping[str, Sequence[Any]], path: Path) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise FedSPMError(f"{path}: writing parquet needs pyarrow; pip install 'fedspm[parquet]'") from error
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table({name: list(values) for name, values in columns.items()}), buffer)
    return buffer.getvalue()


def evaluate_on(run: Run, path: Path) -> dict[str, Any]:
    """Metrics on new rows with labels, in any form that `fedspm data check` takes. Rows of clients that the run knows
    are also answered by their own; those of others, and of nobody in particular, by the system alone."""
    rows = read_labelled(path, row_schema(run), run.config.data.reading, OUTSIDE)
    model = run.model()
    names = model.algorithm.task.names
    if set(rows) <= set(names):
        shape = run.task.shape
        nothing = Part(torch.zeros(0, *shape), torch.zeros(0, dtype=torch.long))
        tests = tuple(rows.get(name, nothing) for name in names)
        return evaluate(model, Federation(names, run.classes, tuple(nothing for _ in names), tests), full=True)
    return _of_the_system(model, rows)


@torch.no_grad()
def _of_the_system(model: Model, rows: Mapping[str, Part]) -> dict[str, Any]:
    clients, everything = {}, []
    for name, part in rows.items():
        pieces = [_answered(model, x) for x in chunks(part.x)]
        label, p = (torch.cat(each) for each in zip(*pieces, strict=True))
        everything.append((part.y, label, p))
        clients[name] = _measured(part.y, label, p)
    y, label, p = (torch.cat(each) for each in zip(*everything, strict=True))
    return _measured(y, label, p) | {"clients": clients}


def _answered(model: Model, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The system's label and probabilities."""
    embedding = model.embed(x)
    if not model.algorithm.routes:
        votes, p = model.everybody(embedding)
        return votes.argmax(1).cpu(), p.cpu()
    p = model.probabilities(embedding).cpu()
    return p.argmax(1), p


def _measured(y: torch.Tensor, label: torch.Tensor, p: torch.Tensor) -> dict[str, Any]:
    return {
        "rows": len(y),
        "system_accuracy": float((label == y).double().mean()),
        "balanced_accuracy": balanced_accuracy(y, label),
        "scores": {"system": scores(y, label, p)},
    }
