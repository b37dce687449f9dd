"""The job on FedSPM's engine in process."""

import numpy as np
from torch import nn

from fedspm.algorithms import build_algorithm
from fedspm.data.federation import Federation
from fedspm.data.part import Part
from fedspm.engines.local import LocalEngine
from fedspm.federated.evaluation import evaluate
from fedspm.federated.task import Task
from fedspm.runs.config import resolve
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round

from .job import Job, Turns, read


def main(path: str, workers: str) -> None:
    turns, job = Turns(), read(path)
    federation = federation_of(job)
    block = {
        "steps": job.steps,
        "batch_size": job.batch_size,
        "learning_rate": job.learning_rate,
        "momentum": job.momentum,
    }
    config = resolve({"algorithm": "fedavg", "horizon": 1_000_000, "predictor": block})  # the rate stays as it is
    algorithm = build_algorithm(config, Task.of_federation(federation), {"predictor": job.network[:-1]})
    with LocalEngine(federation, seed=0, workers=workers, device="cpu") as engine:
        shared = begin(algorithm, engine)
        for number in range(job.rounds):
            shared = one_round(algorithm, engine, shared, number)
            if job.test:
                model = personalised(algorithm, engine, shared)
                turns.done(evaluate(model, federation, engine.map)["system_accuracy"])
            else:
                turns.done(None)


def federation_of(job: Job) -> Federation:
    names = tuple(f"client {i}" for i in range(len(job.train)))
    head = job.network[-1]
    assert isinstance(head, nn.Linear)
    train, test = (tuple(Part(*rows) for rows in parts) for parts in (job.train, job.test))
    return Federation(names, np.arange(head.out_features), train, test)
