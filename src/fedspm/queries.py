"""Answers to outside queries: who answers, what, and how sure the system is of both."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspm.errors import FedSPMError
from fedspm.evaluation import Model
from fedspm.runs import Run


def answer(run: Run, rows: Sequence[Tensor]) -> list[dict[str, Any]]:
    """One reply a row: client, posterior, prediction, probabilities."""
    model = run.model()
    if not model.algorithm.routes:
        raise FedSPMError(f"{run.path}: {run.config.algorithm} cannot route; ask one client with FederatedClassifier")
    return replies(model, torch.stack(list(rows)), run.classes)


@torch.no_grad()
def replies(model: Model, x: Tensor, classes: np.ndarray) -> list[dict[str, Any]]:
    embedding = model.embed(x)
    posterior = model.posterior(embedding)
    client, probabilities = model.answer(embedding)
    assert posterior is not None
    assert client is not None
    names = model.algorithm.task.names
    return [
        {
            "client": names[chosen],
            "posterior": dict(zip(names, over_clients, strict=True)),
            "prediction": classes[int(np.argmax(over_classes))].item(),
            "probabilities": dict(zip(map(str, classes.tolist()), over_classes, strict=True)),
        }
        for chosen, over_clients, over_classes in zip(
            client.tolist(), posterior.tolist(), probabilities.tolist(), strict=True
        )
    ]
