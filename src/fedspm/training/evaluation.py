"""The model of a training as it is evaluated, and its metrics: here, or counted by the sites on their own rows."""

from typing import Any

from fedspm.base.errors import TooFewSites
from fedspm.base.tensors import Tensors
from fedspm.data.federation import Federation
from fedspm.federated.algorithm import Algorithm, without_noise
from fedspm.federated.evaluation import Model, from_counts
from fedspm.training.engine import CountingEngine, Engine


def personalise(algorithm: Algorithm, engine: Engine, shared: Tensors) -> None:
    """Whatever clients do on their own before they are evaluated: all of them, whoever trained."""
    engine.invite_all()
    if algorithm.personalises():
        engine(algorithm.personalise, shared)


def model_of(algorithm: Algorithm, engine: Engine, shared: Tensors) -> Model:
    """The model as it is, with the private states that the engine holds."""
    return Model(algorithm, engine.send(shared), list(engine.private_states().values()))


def personalised(algorithm: Algorithm, engine: Engine, shared: Tensors) -> Model:
    """The model as it is evaluated."""
    personalise(algorithm, engine, shared)
    return model_of(algorithm, engine, shared)


def counted(algorithm: Algorithm, engine: Engine, shared: Tensors) -> dict[str, Any]:
    """The metrics that follow from what the sites counted on their own test rows; none under noise, when no count
    leaves and the sites are only brought the state."""
    assert isinstance(engine, CountingEngine)
    try:
        if without_noise(algorithm):
            personalise(algorithm, engine, shared)
            counts = engine.count(shared)
        else:
            engine.invite_all()
            engine(algorithm.personalise, shared)
            counts = {}
    except TooFewSites:
        counts = {}
    return from_counts(counts, algorithm.task.names, algorithm.routes)


def has_test_rows(federation: Federation) -> bool:
    return any(map(len, federation.test or ()))
