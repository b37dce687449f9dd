"""The in-process engine: the same bits whatever happens, and errors that say who and when."""

from dataclasses import fields, replace

import pytest
import torch

from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import TrainingFailed
from fedspm.base.tensors import moved
from fedspm.data.catalog.fashion import NAMES, load_sample
from fedspm.data.federation import Federation
from fedspm.data.heterogeneity import Heterogeneity, impose
from fedspm.data.part import Truth
from fedspm.engines.local import LocalEngine
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.task import Task
from fedspm.training.loop import begin, one_round
from small import small_settings

SMALL = {"encoder": "auto", "steps": 2, "batch_size": 16}


def train(federation, settings, workers=1):
    algorithm = FedSPM(settings, Task.of_federation(federation))
    with LocalEngine(federation, seed=settings.seed, workers=workers) as engine:
        shared = begin(algorithm, engine)
        for number in range(settings.rounds):
            shared = one_round(algorithm, engine, shared, number)
        return shared, engine.privates


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bits(vectors, quick, workers):
    shared, privates = train(vectors, quick)
    again, privates_again = train(vectors, quick, workers)
    assert_same_bits(shared, again)
    for name, private in privates.items():
        assert_same_bits(private, privates_again[name])


def test_another_seed_gives_another_model(vectors):
    one, _ = train(vectors, small_settings(seed=1))
    other, _ = train(vectors, small_settings(seed=2))
    assert not torch.equal(one["tilt.xi"], other["tilt.xi"])


def test_the_number_of_threads_is_given_back(vectors, quick):
    before = torch.get_num_threads()
    train(vectors, quick)
    assert torch.get_num_threads() == before


def test_a_failing_client_is_named(vectors):
    block = {"encoder": "mlp", "momentum": 0.9, "steps": 20, "learning_rate": 1e30, "batch_size": 32}
    with pytest.raises(TrainingFailed, match=r"client 'north', round 0, step maximise: .*not finite.*learning rate"):
        train(vectors, small_settings(predictor=block))


class Wire(LocalEngine):
    """Records every tensor of every reply."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seen = []

    def __call__(self, step, shared, **arguments):
        def watched(client, shared, **arguments):
            reply, private = step(client, shared, **arguments)
            sums = reply.totals() if hasattr(reply, "totals") else reply.rows[client.name]
            self.seen += [(step.__name__, name, tuple(tensor.shape)) for name, tensor in sums.items()]
            return reply, private

        watched.__name__, watched.__self__ = step.__name__, step.__self__
        return super().__call__(watched, shared, **arguments)


@pytest.mark.parametrize("start", ["judged", "kmeans", "random"])
def test_only_what_is_declared_leaves_a_client(vectors, start):
    settings = small_settings(em={"start": start, "hold": 1})
    algorithm = FedSPM(settings, Task.of_federation(vectors))
    with Wire(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        for number in range(3):
            shared = one_round(algorithm, engine, shared, number)
    assert {step for step, _, _ in engine.seen} <= set(algorithm.steps)
    for step, name, shape in engine.seen:
        assert algorithm.steps[step].upload(name), (step, name)
        assert not set(shape) & set(vectors.counts), f"{step} sends {name} with one entry a row"
        assert "head" not in name
        assert "responsibilities" not in name


def test_sums_of_few_rows_stay_at_the_client(vectors):
    settings = small_settings(min_count=100)  # north has 90 rows
    algorithm = FedSPM(settings, Task.of_federation(vectors))
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        engine.init_private(algorithm)
        totals = engine(algorithm.describe, {}).totals()
        assert (totals["count"] == sum(n for n in vectors.counts if n >= 100)).all()
        assert Algorithm.start(algorithm, engine)["input.mean"].isfinite().all()
        moments = engine(algorithm.moments, Algorithm.start(algorithm, engine), view=torch.tensor(0)).totals()
        assert moments["count"] == sum(n for n in vectors.counts if n >= 100)


def test_an_error_of_a_method_says_where_it_was(vectors, monkeypatch):
    def maximise(self, client, shared, tau):
        raise KeyError("of a plugin")

    algorithm = FedSPM(small_settings(), Task.of_federation(vectors))
    with LocalEngine(vectors, seed=0, workers=2) as engine:
        shared = begin(algorithm, engine)
        monkeypatch.setattr(FedSPM, "maximise", maximise)
        with pytest.raises(KeyError, match="of a plugin") as caught:
            one_round(algorithm, engine, shared, 3)
    assert caught.value.__notes__ == ["fedspm: client 'north', round 3, step maximise"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_doubles_stay_on_the_cpu(device):
    """MPS has none; `meta` stands for it here."""
    given = {"centres": torch.zeros(2, dtype=torch.float64), "tau": torch.zeros(2), "row": torch.zeros(2, dtype=int)}
    found = {name: tensor.device.type for name, tensor in moved(given, torch.device(device)).items()}
    assert found == {"centres": "cpu", "tau": device, "row": device}


CNN = {"encoder": "cnn", "dimension": 4, "batch_size": 32, "momentum": 0.9, "steps": 1}


def test_rows_are_standardised_channel_by_channel_over_all_clients():
    draw = torch.Generator().manual_seed(0)
    images = {
        name: torch.randn(n, 3, 8, 9, generator=draw) * torch.tensor([2.0, 0.5, 0.0])[:, None, None] + shift
        for name, n, shift in (("one", 20, 0.0), ("two", 50, 3.0))
    }
    images = {name: x.index_fill(1, torch.tensor([2]), 7.0) for name, x in images.items()}  # a channel that is constant
    federation = Federation.from_arrays({name: (x, torch.arange(len(x)) % 2) for name, x in images.items()})
    algorithm = FedSPM(small_settings(predictor=CNN, router=CNN), Task.of_federation(federation))
    with LocalEngine(federation, seed=0, workers=1) as engine:
        engine.init_private(algorithm)
        shared = Algorithm.start(algorithm, engine)
    everything = torch.cat(list(images.values())).transpose(0, 1).flatten(1).double()
    torch.testing.assert_close(shared["input.mean"].double(), everything.mean(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        shared["input.scale"][:2].double(), everything[:2].std(1, unbiased=False), rtol=1e-5, atol=0.0
    )
    assert shared["input.scale"][2] == 1


def test_the_server_knows_which_round_it_extrapolates(vectors, monkeypatch):
    algorithm = FedSPM(small_settings(), Task.of_federation(vectors))
    rounds = []
    monkeypatch.setattr(
        "fedspm.algorithms.fedspm.extrapolate",
        lambda algorithm, shared, update, round: rounds.append(round) or update,
    )
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        for number in (0, 2):
            one_round(algorithm, engine, shared, number)
    assert rounds == [0, 2]


def test_no_two_clients_rounds_or_steps_draw_the_same_batches():
    def batches(name, round, step, steps=2):
        client = Client(name, 0, torch.zeros(40, 1), torch.zeros(40, dtype=torch.long), {}, round, 0)
        return client.batches(step, 40, steps).order

    drawn = [batches(*who) for who in (("a", 0, "s"), ("b", 0, "s"), ("a", 1, "s"), ("a", 0, "t"))]
    assert len({tuple(order.flatten().tolist()) for order in drawn}) == 4
    first, second = drawn[0]
    assert not torch.equal(first, second)  # nor two passes
    assert sorted(second.tolist()) == list(range(40))
    assert torch.equal(drawn[0], batches("a", 0, "s"))


def test_a_component_that_dies_makes_no_nan(vectors):
    settings = small_settings(components=3, rounds=2, em={"start": "random", "hold": 0})
    algorithm = FedSPM(settings, Task.of_federation(vectors))
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        for private in engine.privates.values():
            private["mixing"] = torch.tensor([0.7, 0.3, 0.0])
        for number in range(2):
            shared = one_round(algorithm, engine, shared, number)
            assert all(value.isfinite().all() for value in shared.values())
        assert (shared["tau"][:, 2] == 0).all()
        for private in engine.privates.values():
            assert all(value.isfinite().all() for value in private.values())


def test_training_never_reads_the_truth():
    """The true components scrambled before training: the same bits. Nor is a client step handed anything of them."""
    images, labels = load_sample()
    honest = impose(images[:600], labels[:600], NAMES, Heterogeneity(clients=2), seed=0)
    lies = Truth(tuple(z[torch.randperm(len(z))] for z in honest.truth.train), honest.truth.test, honest.truth.mixing)
    settings = small_settings(rounds=2, predictor=SMALL | {"momentum": 0.9}, router=SMALL | {"momentum": 0.95})
    results = [train(federation, settings) for federation in (honest, replace(honest, truth=lies))]
    assert_same_bits(results[0][0], results[1][0])
    for name, private in results[0][1].items():
        assert_same_bits(private, results[1][1][name])
    handed = {"name", "index", "x", "y", "private", "round", "seed", "solver", "weight", "repeated"}
    assert {field.name for field in fields(Client)} == handed | {"component"}  # which one control alone is handed:
    algorithm = FedSPM(settings, Task.of_federation(honest))
    assert [step.name for step in algorithm.steps.values() if step.truth] == ["take_truth"]
    assert not algorithm.steps["take_truth"].used(algorithm)


def test_bytes_of_a_round_count_every_tensor_once_a_client(vectors, quick):
    algorithm = FedSPM(quick, Task.of_federation(vectors))
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        one_round(algorithm, engine, shared, 0)
    clients, tau = 3, shared["tau"].nbytes
    learnt = sum(
        value.nbytes for name, value in shared.items() if name.split(".")[0] in ("predictor", "router", "tilt")
    )
    assert engine.traffic.down == clients * (sum(value.nbytes for value in shared.values()) + tau)
    assert engine.traffic.up == tau + clients * (learnt + 8)
