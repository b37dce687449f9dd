"""Does a method keep the contract? In the manner of scikit-learn's `check_estimator`: one small training per question.

check_algorithm(FedMedian)                     # every check, or an AssertionError that names the one that failed
@pytest.mark.parametrize("check", CHECKS)      # or one test each
def test_my_method(check): CHECKS[check](FedMedian)
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedspm.algorithms import ALGORITHMS
from fedspm.base.errors import TooFewSites, TrainingFailed
from fedspm.base.tensors import Tensors, tensor_bytes
from fedspm.data.federation import Federation
from fedspm.engines.local import LocalEngine
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.replies import Combined, PerClient, Reply
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.training.engine import Engine
from fedspm.training.evaluation import prepare
from fedspm.training.loop import begin, one_round

NAME = "method-under-test"  # under which sites find it while it is checked
ROUNDS = 4
NOISE = {"privacy": {"clip": 0.5, "noise": 0.1}}
Check = Callable[..., None]


def small_federation(order: tuple[str, ...] = ("north", "south", "west", "east")) -> Federation:
    """Four clients of different sizes; each has two hidden components whose labels follow different rules."""
    sizes = {"north": 60, "south": 90, "west": 75, "east": 120}

    def rows(name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
        number = sorted(sizes).index(name)
        random = np.random.default_rng([number, part == "test"])
        component = random.integers(0, 2, sizes[name])
        x = random.normal(size=(sizes[name], 5)) + number / 2
        y = (x[:, 1] > number / 2) ^ (component == 1)
        x[:, 0] += 4 * component
        return x.astype(np.float32), y.astype(np.int64)

    train, test = ({name: rows(name, part) for name in order} for part in ("train", "test"))
    return Federation.from_arrays(train, test)


def small_settings(batch_size: int = 32, **changes: Any) -> Settings:
    block = {"encoder": "mlp", "dimension": 4, "batch_size": batch_size, "steps": 5}
    values = {"algorithm": NAME, "components": 2, "rounds": ROUNDS, "em": {"hold": 1}}
    blocks = {"predictor": block | {"momentum": 0.9}, "router": block | {"momentum": 0.95}}
    return Settings.model_validate(values | blocks | changes)


@contextmanager
def known(method: type[Algorithm]) -> Iterator[None]:
    """While sites look it up by name."""
    ALGORITHMS[NAME] = method
    try:
        yield
    finally:
        del ALGORITHMS[NAME]


def train_rounds(algorithm: Algorithm, engine: Engine, shared: Tensors, first: int, last: int) -> Tensors:
    for number in range(first, last):
        shared = one_round(algorithm, engine, shared, number)
    return shared


def trained(method: type[Algorithm], federation: Federation, **changes: Any) -> tuple[Algorithm, Tensors, LocalEngine]:
    """The method after a few rounds in process."""
    engine_options = {key: changes.pop(key) for key in ("workers", "clients_at_once") if key in changes}
    algorithm = method(small_settings(**changes), Task.of_federation(federation))
    with LocalEngine(federation, seed=0, **{"workers": 1, **engine_options}) as engine:
        shared = train_rounds(algorithm, engine, begin(algorithm, engine), 0, ROUNDS)
        shared = prepare(algorithm, engine, shared)
    return algorithm, shared, engine


def assert_equal(one: Tensors, other: Tensors, what: str) -> None:
    assert one.keys() == other.keys(), f"{what}: {sorted(one.keys() ^ other.keys())} are in one of them only"
    for name in one:
        assert torch.equal(one[name], other[name]), f"{what}: {name} differs"


def answers(algorithm: Algorithm, shared: Tensors, engine: LocalEngine, client: str, x: torch.Tensor) -> torch.Tensor:
    """What one client answers to some rows."""
    number = algorithm.task.names.index(client)
    with torch.no_grad():
        return algorithm.local_probabilities(number, engine.privates[client], shared, algorithm.embed(shared, x))


# -- the checks ------------------------------------------------------------------------------------------------------


def check_predicts(method: type[Algorithm], **changes: Any) -> None:
    """Class probabilities that add up to one; a score for every client if it routes."""
    federation = small_federation()
    algorithm, shared, engine = trained(method, federation, **changes)
    assert federation.test is not None
    x = federation.test[0].x
    for name in federation.names:
        found = answers(algorithm, shared, engine, name, x)
        assert found.shape == (len(x), 2), f"local_probabilities of {name} answers {tuple(found.shape)}"
        assert torch.allclose(found.sum(1), torch.ones(len(x)), atol=1e-4), f"probabilities of {name} miss one"
    scores = algorithm.log_scores(shared, algorithm.embed(shared, x))
    assert (scores is not None) == algorithm.routes, "`routes` says whether log_scores answers"
    assert scores is None or scores.shape == (len(x), len(federation.names)), "log_scores: one per row and client"


def check_workers(method: type[Algorithm], **changes: Any) -> None:
    """The same bits with any number of workers."""
    federation = small_federation()
    _, one, first = trained(method, federation, workers=1, **changes)
    _, two, second = trained(method, federation, workers=3, **changes)
    assert_equal(one, two, "one worker and three")
    for name in federation.names:
        assert_equal(first.privates[name], second.privates[name], f"private state of {name}, one worker and three")


def check_resumes(method: type[Algorithm], **changes: Any) -> None:
    """The same bits after a stop, from the shared and private states alone."""
    federation = small_federation()
    algorithm = method(small_settings(**changes), Task.of_federation(federation))
    with LocalEngine(federation, seed=0, workers=1) as engine:
        start = begin(algorithm, engine)
        for state in (start, *engine.privates.values()):
            tensor_bytes(state)  # as a checkpoint: tensors that share memory cannot be saved
        half = train_rounds(algorithm, engine, start, 0, ROUNDS // 2)
        privates = {name: dict(state) for name, state in engine.privates.items()}
        whole = train_rounds(algorithm, engine, half, ROUNDS // 2, ROUNDS)
    again = method(small_settings(**changes), Task.of_federation(federation))
    with LocalEngine(federation, seed=0, workers=1) as engine:
        engine.restore(ROUNDS // 2, privates)
        assert_equal(whole, train_rounds(again, engine, half, ROUNDS // 2, ROUNDS), "resumed")


def check_renumbering(method: type[Algorithm], **changes: Any) -> None:
    """How clients are numbered changes nobody's answers but by rounding."""
    federation, turned = small_federation(), small_federation(("east", "west", "north", "south"))
    found = []
    for each in (federation, turned):
        algorithm, shared, engine = trained(method, each, **changes)
        assert federation.test is not None
        found.append([answers(algorithm, shared, engine, name, federation.test[0].x) for name in federation.names])
    for name, one, other in zip(federation.names, *found, strict=True):
        assert torch.allclose(one, other, atol=1e-3), f"{name} answers otherwise when clients are numbered otherwise"


def check_clients_at_once(method: type[Algorithm], **changes: Any) -> None:
    """Clients that are trained in groups get what they get alone, up to rounding: no row sees another in a batch."""
    federation = small_federation()
    changes = {"batch_size": 100, **changes}  # more rows than most clients have: a group fills their batches up
    _, alone, _ = trained(method, federation, **changes)
    _, together, _ = trained(method, federation, clients_at_once=4, **changes)
    for name, value in alone.items():
        if value.is_floating_point():
            assert torch.allclose(value, together[name], atol=1e-3, rtol=1e-3), f"clients_at_once: {name} differs"


def check_declarations(method: type[Algorithm], **changes: Any) -> None:
    """Only steps that the settings use are asked for, as often as declared, and no reply holds rows of a client."""
    federation = small_federation()
    algorithm = method(small_settings(**changes), Task.of_federation(federation))
    engine = Watching(federation, seed=0, workers=1)
    with engine:
        shared = train_rounds(algorithm, engine, begin(algorithm, engine), 0, 2)
        prepare(algorithm, engine, shared)
    unused = engine.asked.keys() - algorithm.steps_in_use().keys()
    assert not unused, f"steps are asked for that `used` says are not: {sorted(unused)}"
    for name, asked in engine.asked.items():
        times = algorithm.steps[name].most_times(algorithm)
        assert asked <= times, f"step {name} is asked for {asked} times in one round and declares times={times}"


class Watching(LocalEngine):
    """Counts how often each step is asked for in a round, and looks at what every client sends."""

    def __init__(self, federation: Federation, **options: Any):
        self.asked: Counter[str] = Counter()  # the most in any round
        super().__init__(federation, **options)

    def begin_round(self, number: int, participants: Sequence[int] | None = None) -> None:
        super().begin_round(number, participants)
        self._this_round: Counter[str] = Counter()

    def __call__(self, step: Any, shared: Tensors, **arguments: torch.Tensor) -> Any:
        self._this_round[step.__name__] += 1
        self.asked |= self._this_round
        self._step = step.__name__
        return super().__call__(step, shared, **arguments)

    def _taken(self, take: Callable[..., Any]) -> Iterator[Any]:
        for i, (taken, reply) in zip(self.participants, super()._taken(take), strict=True):
            x = self.data[i][0]
            for name, value in _tensors(taken.reply).items():
                assert len(x) not in value.shape, f"step {self._step} sends {name} with one entry per row of a client"
                copied = torch.isin(value.float(), x).sum() if value.is_floating_point() else 0
                assert copied < x.shape[1], f"step {self._step} sends {name} with values of a client's rows"
            yield taken, reply


def check_sites(method: type[Algorithm], **changes: Any) -> None:
    """Across sites: the bits, the bytes and the noised vectors of the in-process engine, and nothing refused."""
    if find_spec("flwr") is None:
        return
    from fedspm.testing.loop_grid import loop_engine

    federation = small_federation()
    algorithm, expected, local = trained(method, federation, **changes)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine = loop_engine(federation, algorithm, Path(folder))
            shared = train_rounds(algorithm, engine, begin(algorithm, engine), 0, ROUNDS)
            refused = [line for line in engine.said if line.startswith("left out")]
            assert not refused, f"across sites: {refused[0]}"
            assert_equal(expected, shared, "across sites and in process")
            assert dict(engine.releases.of) == dict(local.releases.of), "noised vectors are counted otherwise at sites"
    except TooFewSites as error:
        raise AssertionError(f"across sites: {error}") from error
    finally:
        torch.set_num_threads(threads)


def check_privacy(method: type[Algorithm], **changes: Any) -> None:
    """With noise every update is counted, on both engines; or the method says that it cannot be protected."""
    federation = small_federation()
    try:
        algorithm, _, engine = trained(method, federation, **NOISE, **changes)
    except TrainingFailed as error:
        if "privacy." in str(error):  # it says so
            return
        raise
    sends = any(upload.noised for step in algorithm.steps_in_use().values() for upload in step.uploads.values())
    assert not sends or engine.releases.most > 0, "updates leave and no noised vector is counted"
    check_sites(method, **NOISE, **changes)


CHECKS: dict[str, Check] = {
    "predicts": check_predicts,
    "workers": check_workers,
    "resumes": check_resumes,
    "renumbering": check_renumbering,
    "clients_at_once": check_clients_at_once,
    "declarations": check_declarations,
    "sites": check_sites,
    "privacy": check_privacy,
}


def check_algorithm(method: type[Algorithm], only: str | None = None, **settings: Any) -> None:
    """Raise an AssertionError that names the first check which `method` fails. `settings` are added to those of the
    small trainings, as nested tables: `options={"lam": 0.5}`."""
    for name, check in CHECKS.items():
        if only in (None, name):
            try:
                with known(method):
                    check(method, **settings)
            except AssertionError as error:
                raise AssertionError(f"{method.__name__} fails check {name!r} ({check.__doc__}): {error}") from error


def _tensors(reply: Reply) -> Tensors:
    """Everything that a merged reply holds."""
    if isinstance(reply, Combined):
        return _tensors(reply.mean) | _tensors(reply.rows)
    if isinstance(reply, PerClient):
        return {name: value for row in reply.rows.values() for name, value in row.items()}
    return reply.totals()
