"""The model of a training as it is evaluated, and its metrics: here, or counted by the sites on their own rows."""

from typing import Any

from fedspm.base.tensors import Tensors
from fedspm.data.federation import Federation
from fedspm.federated.algorithm import Algorithm, without_noise
from fedspm.federated.evaluation import Model, from_counts
from fedspm.training.engine import CountingEngine, Engine


def prepare(algorithm: Algorithm, engine: Engine, shared: Tensors) -> Tensors:
    """The state as it is evaluated, saved and served; all clients take part in it, whoever trained."""
    engine.invite_all()
    return algorithm.prepared(shared, engine)


def model_of(algorithm: Algorithm, engine: Engine, shared: Tensors) -> Model:
    """The model as it is, with the private states that the engine holds."""
    return Model(algorithm, engine.send(shared), list(engine.private_states().values()))


def personalised(algorithm: Algorithm, engine: Engine, shared: Tensors) -> Model:
    """The model as it is evaluated."""
    return model_of(algorithm, engine, prepare(algorithm, engine, shared))


def counted(algorithm: Algorithm, engine: Engine, shared: Tensors) -> dict[str, Any]:
    """The metrics that follow from what the sites count on their own test rows, in a state that is prepared; none under
    noise, when no count leaves and the sites are only brought the state."""
    assert isinstance(engine, CountingEngine)
    if without_noise(algorithm):
        return from_counts(engine.count(shared), algorithm.task.names, algorithm.routes)
    if not algorithm.personalises():  # or they have been asked to prepare
        engine(algorithm.personalise, shared)
    return from_counts({}, algorithm.task.names, algorithm.routes)


def has_test_rows(federation: Federation) -> bool:
    return any(map(len, federation.test or ()))
