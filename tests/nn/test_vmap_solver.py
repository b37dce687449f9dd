"""Clients through one set of kernels: the results of each on its own, whatever the group."""

from concurrent.futures import ThreadPoolExecutor
from inspect import unwrap

import numpy as np
import pytest
import torch

from fedspm import Federation
from fedspm.algorithms import ALGORITHMS, algorithm_named
from fedspm.algorithms.fedavg import FedAvg
from fedspm.base.errors import FedSPMError, TrainingFailed
from fedspm.engines.local import LocalEngine
from fedspm.federated.client import Client
from fedspm.federated.task import Task
from fedspm.nn import vmap_solver
from fedspm.runs.config import resolve
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round
from small import small_settings, toy_rows

ONES = torch.ones(3)


@pytest.fixture(scope="module")
def uneven():
    """Seven clients, some of them with fewer rows than a batch."""
    sizes = [40, 90, 12, 33, 64, 20, 31]
    return Federation.from_arrays(
        {f"site {i}": toy_rows(n, i / 3, bool(i % 2), seed=i) for i, n in enumerate(sizes)}, test_fraction=0.2
    )


@pytest.fixture
def groups(monkeypatch):
    """How many clients were solved as one, each time. The tests' type checker wraps functions anew: look inside."""
    seen = []
    stacked, same = vmap_solver.stacked, vmap_solver.same
    monkeypatch.setattr(vmap_solver, "same", lambda one, other: same(unwrap(one), unwrap(other)))

    def noted(problems):
        seen.append(len(problems))
        return stacked(problems)

    monkeypatch.setattr(vmap_solver, "stacked", noted)
    return seen


def trained(federation, name, at_once, workers=1, algorithm=None, **changes):
    settings = small_settings(algorithm=name, **changes)
    algorithm = (algorithm or algorithm_named(name))(settings, Task.of_federation(federation))
    with LocalEngine(federation, seed=settings.seed, workers=workers, clients_at_once=at_once) as engine:
        shared = begin(algorithm, engine)
        for number in range(settings.rounds):
            shared = one_round(algorithm, engine, shared, number)
        return personalised(algorithm, engine, shared)


def assert_close(one, other, atol=2e-5):
    for mine, theirs in zip([one.shared, *one.privates], [other.shared, *other.privates], strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=atol, err_msg=name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_gives_what_it_gives_one_by_one(uneven, groups, name):
    alone = trained(uneven, name, 1)
    assert not groups
    assert_close(trained(uneven, name, 4), alone)
    assert max(groups) >= (2 if name == "cluster-fl" else 3), "they were solved one by one"


@pytest.mark.parametrize(("name", "changes"), [("fedspm", {"variant": "cx"}), ("feddrm", {"options": {"joint": True}})])
def test_so_do_the_variants(uneven, groups, name, changes):
    assert_close(trained(uneven, name, 7, **changes), trained(uneven, name, 1, **changes))
    assert max(groups) == 7


def test_one_exchange_a_round(uneven, groups):
    changes = {"wire": {"exchanges": 1}}
    assert_close(trained(uneven, "fedspm", 3, **changes), trained(uneven, "fedspm", 1, **changes))
    assert max(groups) == 3


def test_any_number_of_workers_gives_the_same_bits(uneven):
    one, other = (trained(uneven, "fedspm", 3, workers) for workers in (1, 3))
    for name, value in one.shared.items():
        assert torch.equal(value, other.shared[name]), name


def test_a_private_state_keeps_nothing_of_the_others(uneven):
    for private in trained(uneven, "fedspm", 7).privates:
        for name, value in private.items():
            assert value.untyped_storage().nbytes() == value.nbytes, name


def test_tables_of_the_incremental_e_step_are_each_clients_own(uneven, groups):
    changes = {"em": {"e_step": "incremental", "hold": 0, "start": "random"}}
    alone, grouped = (trained(uneven, "fedspm", at_once, rounds=3, **changes) for at_once in (1, 7))
    assert_close(grouped, alone, atol=0)
    assert not groups, "a batch notes what it says in its client's own table"


def test_what_closes_over_one_client_is_solved_alone(uneven, groups):
    class Greedy(FedAvg):
        def trained(self, client, shared):
            mine = client.y.float().mean()
            return self.local_solver(
                client,
                "supervised",
                self.predictor,
                self.weights(shared),
                lambda w, batch: self.loss(w, batch, shared) * mine,
            )

    one, other = (trained(uneven, "fedavg", at_once, algorithm=Greedy) for at_once in (1, 4))
    assert not groups
    for name, value in one.shared.items():
        assert torch.equal(value, other.shared[name]), name


@pytest.fixture
def images():
    draw = np.random.default_rng(0)
    rows = {f"site {i}": (draw.random((20, 1, 8, 8)), np.arange(20) % 2) for i in range(3)}
    return Federation.from_arrays(rows, test_fraction=0.25)


def test_what_cannot_be_mapped_is_solved_alone_and_said(images):
    """PyTorch cannot map group normalisation over clients."""
    changes = {"predictor": {"encoder": "resnet", "momentum": 0.9, "steps": 2}}
    one = trained(images, "fedavg", 1, **changes)
    with pytest.warns(UserWarning, match="clients_at_once: clients are trained one by one, since"):
        other = trained(images, "fedavg", 3, **changes)
    for name, value in one.shared.items():
        assert torch.equal(value, other.shared[name]), name


def test_running_statistics_are_each_clients_own(images, groups):
    changes = {"predictor": {"encoder": "resnet", "normalisation": "batch", "momentum": 0.9, "steps": 2}}
    one, other = (trained(images, "fedavg", at_once, **changes) for at_once in (1, 3))
    assert not groups
    for name, value in one.shared.items():
        assert torch.equal(value, other.shared[name]), name


def test_the_client_that_fails_is_named(uneven):
    class Diverging(FedAvg):
        def loss(self, w, batch, shared):
            return super().loss(w, batch, shared) / (batch.client != 2)

    with pytest.raises(TrainingFailed, match=r"client 'site 2', round 0, step update: .*lower the learning rate"):
        trained(uneven, "fedavg", 7, algorithm=Diverging)


class Odd(Exception):
    """An error that cannot be copied."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


@pytest.mark.parametrize("error", [KeyError("no such tensor"), Odd(1, 2), SystemExit(3)])
def test_a_mistake_in_an_objective_leaves_nobody_waiting(uneven, groups, error):
    class Wrong(FedAvg):
        def loss(self, w, batch, shared):
            raise error

    with pytest.raises(type(error)) as raised:
        trained(uneven, "fedavg", 4, workers=2, algorithm=Wrong)
    assert raised.value is error
    assert groups


def test_a_mistake_in_one_step_is_its_own(uneven, groups):
    class Wrong(FedAvg):
        def update(self, client, shared):
            found = super().update(client, shared)
            return found if client.index != 3 else 1 / 0

    with pytest.raises(ZeroDivisionError):
        trained(uneven, "fedavg", 7, algorithm=Wrong)
    assert groups == [7]


def test_no_more_threads_is_said_and_nobody_waits():
    class Full(ThreadPoolExecutor):
        def submit(self, *call):
            made = super().submit(*call)
            if self._work_queue.qsize() or len(self._threads) == 3:
                raise RuntimeError("can't start new thread")
            return made

    with Full(5) as threads, pytest.raises(RuntimeError, match="new thread"):
        vmap_solver.together([lambda solver: None] * 5, threads)


def test_an_objective_must_answer_a_loss_a_row(uneven):
    class Averaged(FedAvg):
        def loss(self, w, batch, shared):
            return super().loss(w, batch, shared).mean()

    with pytest.raises(FedSPMError, match=r"clients_at_once: an objective answers .* not a loss a row"):
        trained(uneven, "fedavg", 4, algorithm=Averaged)


def test_sites_train_their_own_client():
    with pytest.raises(FedSPMError, match="clients_at_once is for local"):
        resolve({"engine": "flower-simulation", "clients_at_once": 8})


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [(1, 1, True), (1, 2, False), (1, True, False), ("a", "a", True), ({}, {}, False), ([1], [1], False)],
)
def test_plain_values_are_compared_and_things_are_not(one, other, alike):
    assert vmap_solver.same(*map(closing_over, (one, other))) is alike


def closing_over(value):
    return lambda: value


def test_other_code_over_the_same_things_is_another_objective():
    table = torch.ones(2)
    assert vmap_solver.same(closing_over(table), closing_over(table))
    assert not vmap_solver.same(closing_over(table), closing_over(table.clone()))
    assert not vmap_solver.same(lambda w: w + table, lambda w: w - table)
    assert not vmap_solver.same(closing_over(lambda: 1), closing_over(lambda: 1))
    assert not vmap_solver.same(calling_itself(), calling_itself())


def calling_itself():
    def again(n):
        return n and again(n - 1)

    return again


def problems(**changes):
    """Two that may be joined but for the changes of the second."""

    def objective(w, batch):
        return ((batch.x @ w["w"] - batch.y) * batch.extra["weight"]).square()

    def made(rows, start=ONES, extra=ONES[0], scale=ONES[0]):
        client = Client("", rows, torch.arange(3.0 * rows).view(rows, 3) / rows, torch.arange(rows), {}, 0, 0)
        batches = client.batches("step", 4, 2, weight=extra.expand(rows))
        options = {"learning_rate": 0.01, "momentum": 0.9, "fixed": ()}
        return vmap_solver.Problem({"w": start}, objective, batches, options, {"w": scale})

    return [made(5), made(3, **changes)]


@pytest.mark.parametrize("scale", [torch.tensor(3.0), torch.tensor([3.0]), torch.tensor([1.0, 2.0, 3.0])])
def test_factors_of_any_shape_are_each_clients_own(scale):
    _, one = problems(scale=scale)
    _, other = problems(scale=scale / 2)
    for found, problem in zip(vmap_solver.stacked([one, other]), [one, other], strict=True):
        torch.testing.assert_close(found, problem.alone())


@pytest.mark.parametrize("changes", [{"start": ONES.double()}, {"extra": ONES[0].double()}])
def test_other_types_of_tensors_are_not_stacked(changes):
    one, other = problems()
    assert one.joins(other)
    one, other = problems(**changes)
    assert not one.joins(other)


def test_extra_rows_are_as_many_as_the_clients():
    client = Client("", 0, torch.ones(4, 2), torch.arange(4), {}, 0, 0)
    with pytest.raises(AssertionError, match="weight: 5 rows of a client that has 4"):
        client.batches("step", 2, 1, weight=torch.ones(5))
