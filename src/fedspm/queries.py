"""Answers to outside queries: who answers, what, and how sure the system is of both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspm.core.local import chunks
from fedspm.data.images import are_pixels, read_image
from fedspm.data.own import read_vectors
from fedspm.data.table import ENDINGS as TABLES
from fedspm.errors import FedSPMError
from fedspm.evaluation import Model
from fedspm.runs import Run


def read_queries(run: Run, files: Sequence[Path]) -> tuple[list[dict[str, Any]], list[Tensor]]:
    """What to call every query, and its row: an image file is one, a table or an archive has one a row."""
    names: list[dict[str, Any]] = []
    rows: list[Tensor] = []
    known = run.manifest
    for file in files:
        if file.suffix.lower() in (*TABLES, ".npz"):
            x = read_vectors(file, known["shape"], known.get("columns"), known.get("range", (0.0, 1.0))[1])
            names += [{"file": str(file), "row": j} for j in range(1, len(x) + 1)]
            rows += x
        else:
            _require_pixels(run)
            names.append({"image": str(file)})
            rows.append(read_image(file, run.task.shape))
    return names, rows


def _require_pixels(run: Run) -> None:
    low, high = run.manifest.get("range", (0.0, 1.0))
    if len(run.task.shape) == 3 and not are_pixels(low, high):
        raise FedSPMError(
            f"{run.path} was trained on values from {low:g} to {high:g}, image files are read as values from 0 to 1; "
            "give an .npz archive with an array x"
        )


def answer(run: Run, rows: Sequence[Tensor]) -> list[dict[str, Any]]:
    """One reply a row: client, posterior, prediction, probabilities."""
    model = run.model()
    if not model.algorithm.routes:
        raise FedSPMError(f"{run.path}: {run.config.algorithm} cannot route; ask one client with FederatedClassifier")
    answers = [replies(model, x, run.classes) for x in chunks(torch.stack(list(rows)))]
    return [reply for part in answers for reply in part]


@torch.no_grad()
def replies(model: Model, x: Tensor, classes: np.ndarray) -> list[dict[str, Any]]:
    posterior, probabilities = model.answer(model.embed(x))
    assert posterior is not None
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
