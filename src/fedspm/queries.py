"""Answers to outside queries: who answers, what, and how sure the system is of both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspm.core.local import chunks
from fedspm.data.images import UNIT, are_pixels, not_pixels, read_image
from fedspm.data.own import read_vectors
from fedspm.data.table import ENDINGS as TABLES
from fedspm.errors import FedSPMError
from fedspm.evaluation import Model, require_finite_answers
from fedspm.runs import Run


def read_queries(run: Run, files: Sequence[Path]) -> tuple[list[dict[str, Any]], list[Tensor]]:
    """What to call every query, and its row: an image file is one, a table or an archive has one a row."""
    names: list[dict[str, Any]] = []
    rows: list[Tensor] = []
    known = run.manifest
    for file in files:
        if file.suffix.lower() in (*TABLES, ".npz"):
            x = read_vectors(file, known["shape"], known.get("columns"), known.get("range", UNIT))
            names += [{"file": str(file), "row": j} for j in range(1, len(x) + 1)]
            rows += x
        else:
            _require_pixels(run)
            names.append({"image": str(file)})
            rows.append(read_image(file, run.task.shape))
    return names, rows


def _require_pixels(run: Run) -> None:
    ends = run.manifest.get("range", UNIT)
    if len(run.task.shape) == 3 and not are_pixels(ends):
        raise FedSPMError(f"{run.path} was trained on {not_pixels(ends)}; give an .npz archive with an array x")


def answer(run: Run, rows: Sequence[Tensor]) -> list[dict[str, Any]]:
    """One reply a row: client, posterior, prediction, probabilities."""
    model = run.model()
    if not model.algorithm.routes:
        raise FedSPMError(f"{run.path}: {run.config.algorithm} cannot route; ask one client with FederatedClassifier")
    answers: list[dict[str, Any]] = []
    for x in chunks(torch.stack(list(rows))):
        answers += replies(model, x, run.classes, len(answers) + 1)
    return answers


@torch.no_grad()
def replies(model: Model, x: Tensor, classes: np.ndarray, first: int = 1) -> list[dict[str, Any]]:
    """`first` is the number of the first row."""
    posterior, probabilities = model.answer(model.embed(x))
    assert posterior is not None
    require_finite_answers(posterior, "P(client | x)", first)
    require_finite_answers(probabilities, "P(class | x)", first)
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
