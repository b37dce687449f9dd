"""Answers to outside queries: who answers, what, and how sure the system is of both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.images import UNIT, are_pixels, not_pixels, read_image
from fedspm.data.readers.detect import read_vectors
from fedspm.data.readers.table import table_ending
from fedspm.federated.evaluation import Model, require_finite_answers
from fedspm.nn.sgd import chunks
from fedspm.runs.folder import Run


class Query(NamedTuple):
    """One row to answer: an image file is one query, a table or an archive has one per row."""

    file: Path
    row: int | None  # counted from one; None for an image
    x: Tensor

    @property
    def name(self) -> dict[str, Any]:
        return {"image": str(self.file)} if self.row is None else {"file": str(self.file), "row": self.row}

    def __str__(self) -> str:
        return str(self.file) if self.row is None else f"{self.file}, row {self.row}"


def read_queries(run: Run, files: Sequence[Path]) -> list[Query]:
    queries: list[Query] = []
    known = run.manifest
    for file in files:
        if table_ending(file) or file.suffix.lower() == ".npz":
            x = read_vectors(file, known["shape"], run.task.schema, known.get("range", UNIT))
            queries += [Query(file, j, row) for j, row in enumerate(x, 1)]
        else:
            _require_pixels(run)
            queries.append(Query(file, None, read_image(file, run.task.shape)))
    return queries


def _require_pixels(run: Run) -> None:
    ends = run.manifest.get("range", UNIT)
    if len(run.task.shape) == 3 and not are_pixels(ends):
        raise FedSPMError(f"{run.path} was trained on {not_pixels(ends)}; give an .npz archive with an array x")


def answer(run: Run, queries: Sequence[Query]) -> list[dict[str, Any]]:
    """One reply per query: client, posterior, prediction, probabilities."""
    model = run.model()
    if not model.algorithm.routes:
        raise FedSPMError(f"{run.path}: {run.config.algorithm} cannot route; use FederatedClassifier.load(…).predict")
    answers: list[dict[str, Any]] = []
    for x in chunks(torch.stack([query.x for query in queries])):
        called = [str(query) for query in queries[len(answers) : len(answers) + len(x)]]
        answers += replies(model, x, run.classes, called)
    return answers


@torch.no_grad()
def replies(model: Model, x: Tensor, classes: np.ndarray, called: Sequence[str] | None = None) -> list[dict[str, Any]]:
    posterior, probabilities = model.answer(model.embed(x))
    assert posterior is not None
    require_finite_answers(posterior, "P(client | x)", called)
    require_finite_answers(probabilities, "P(class | x)", called)
    names = model.algorithm.task.names
    return [
        {
            "client": names[chosen],
            "posterior": dict(zip(names, over_clients, strict=True)),
            "prediction": classes[int(np.argmax(over_classes))].item(),
            "probabilities": dict(zip(map(str, classes.tolist()), over_classes, strict=True)),
        }
        for chosen, over_clients, over_classes in zip(
            posterior.argmax(1).tolist(), posterior.tolist(), probabilities.tolist(), strict=True
        )
    ]
