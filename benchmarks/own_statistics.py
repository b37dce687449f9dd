"""What running statistics of its own are worth to every client of a trained run with batch normalisation.

python benchmarks/own_statistics.py RUN...        nothing is trained: two passes over a client's own training rows

As evaluated, all clients share running statistics that are averaged over clients which differ in colour and brightness.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedspm.data.federation import Federation
from fedspm.federated.evaluation import Model
from fedspm.nn.sgd import chunks
from fedspm.runs.folder import Run

PASSES = 2


@torch.no_grad()
def with_own_statistics(model: Model, x: Tensor) -> Model:
    """The model as one client would have it that recounted them on its own rows."""
    shared = dict(model.shared)
    for encoder in model.algorithm.encoders:
        shared |= {name: shared[name].clone() for name in encoder.buffers}
        for piece in [*chunks(x)] * PASSES:
            encoder(shared, model.algorithm.standardise(shared, piece), training=True)
    return replace(model, shared=shared)


@torch.no_grad()
def accuracies(models: list[Model], federation: Federation) -> tuple[float, float]:
    """System and average accuracy when client i answers with model i; rows are routed by the shared router."""
    assert federation.test is not None
    right, routed_right, rows = 0, 0, 0
    for i, part in enumerate(federation.test):
        for x, y in zip(chunks(part.x), chunks(part.y), strict=True):
            embeddings = [model.embed(x) for model in models]
            answers = torch.stack([model.local(j, embeddings[j]).argmax(1) for j, model in enumerate(models)])
            posterior = models[i].posterior(embeddings[i])
            system = answers.mode(0).values if posterior is None else answers.gather(0, posterior.argmax(1)[None])[0]
            right += int((answers[i] == y).sum())
            routed_right += int((system == y).sum())
            rows += len(y)
    return routed_right / rows, right / rows


def main() -> None:
    torch.set_num_threads(1)
    for folder in sys.argv[1:]:
        run = Run.open(Path(folder))
        federation, model = run.federation(), run.model()
        own = [with_own_statistics(model, part.x) for part in federation.train]
        for what, models in (("shared", [model] * len(own)), ("own", own)):
            system, average = accuracies(models, federation)
            print(f"{folder}: {what} statistics, system {100 * system:.2f}, average {100 * average:.2f}", flush=True)


if __name__ == "__main__":
    main()
