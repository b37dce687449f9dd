"""ε counts every noised vector that leaves a client, whatever the steps are called, on both engines."""

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from fedspm.algorithms import ALGORITHMS, algorithm_named
from fedspm.algorithms.fedavg import FedAvg
from fedspm.base.errors import DamagedFile, FedSPMError, Refused, TooFewSites, TrainingFailed
from fedspm.engines.flower.server import FlowerEngine
from fedspm.engines.flower.transport import Post, Waiting
from fedspm.engines.local import LocalEngine
from fedspm.federated.client import Client
from fedspm.federated.replies import Combined, Mean, PerClient
from fedspm.federated.steps import Step, step
from fedspm.federated.transforms import encode, transforms_of
from fedspm.federated.uploads import Shares, Sum, Update
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.runs.manifest import manifest
from fedspm.training.loop import begin, one_round, train
from postbox import algorithm_of, loop_engine
from small import small_settings

NOISE = {"clip": 1.0, "noise": 4.0}


class Twice(FedAvg):
    """A plugin with two noised exchanges a round, neither called as ours are."""

    def server_round(self, shared, exchange):
        shared = super().server_round(shared, exchange)
        exchange(self.tell, shared)
        return shared | exchange(self.polish, shared).result()

    @step(uploads={"predictor": Update(), "head": Update()})
    def polish(self, client, shared) -> tuple[Mean, dict]:
        return self.update(client, shared)

    @step(uploads={"shares": Shares()})
    def tell(self, client, shared) -> tuple[PerClient, dict]:
        half = torch.tensor(client.n / 2)
        return PerClient.of(client.name, shares=torch.stack([half, half])), client.private


@pytest.fixture
def twice(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "twice", Twice)
    return Twice


def counted(engine, algorithm, rounds):
    shared = begin(algorithm, engine)
    for number in range(rounds):
        shared = one_round(algorithm, engine, shared, number)
    return dict(engine.releases.of)


@pytest.mark.parametrize(
    ("changes", "rounds", "count"),
    [
        ({"algorithm": "fedavg"}, 2, 2),
        ({}, 2, 2 * 2),  # τ and Δ; with noise there is no k-means at the start
        ({"wire": {"exchanges": 1}}, 2, 2 * 2),  # one message, two noised vectors
        ({"algorithm": "feddrm"}, 2, 2),  # one component: τ_i = n_i says nothing
        ({"algorithm": "twice"}, 2, 3 * 2),
        ({}, 0, 0),
        ({"privacy": {"clip": 1.0}}, 1, 0),
    ],
)
def test_every_noised_vector_counts_on_both_engines(vectors, tmp_path, twice, changes, rounds, count):
    settings = small_settings(**{"privacy": NOISE, **changes})
    algorithm = algorithm_of(algorithm_named(settings.algorithm), settings, vectors)
    expected = dict.fromkeys(vectors.names, count) if count else {}
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        assert counted(engine, algorithm, rounds) == expected
    assert counted(loop_engine(vectors, algorithm, tmp_path), algorithm, rounds) == expected


def test_who_rests_pays_nothing_and_being_drawn_hides_nothing(vectors):
    settings = small_settings(algorithm="fedavg", clients_per_round=1, privacy=NOISE)
    algorithm = algorithm_of(FedAvg, settings, vectors)
    drawn = [algorithm.participants(round)[0] for round in range(12)]
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        counts = counted(engine, algorithm, 12)
        assert counts == {vectors.names[i]: drawn.count(i) for i in sorted(set(drawn))}
        assert engine.releases.most == max(counts.values())


def test_a_reply_with_both_is_two_mechanisms(vectors):
    client = Client("north", 0, torch.zeros(90, 6), torch.zeros(90, dtype=torch.long), {}, 0, 0)
    shared = {"w": torch.zeros(3)}
    update, row = Mean(90, w=torch.ones(3)), PerClient.of("north", tau=torch.tensor([30.0, 60.0]))
    kinds = Step("advance", {"w": Update(), "tau": Shares(), "count": Sum()})

    def noised(reply, **changes):
        settings = small_settings(privacy=NOISE, **changes)
        return encode(transforms_of(settings), settings, kinds, client, shared, reply)[1]

    assert [noised(reply) for reply in (update, row, Combined(update, row))] == [1, 1, 2]
    assert noised(Mean(1, count=torch.tensor(90.0))) == 0
    assert noised(PerClient.of("north", tau=torch.tensor([90.0])), components=1) == 0
    with pytest.raises(TrainingFailed, match="'tau' has 2 entries in a run with 1 component"):
        noised(row, components=1)  # it would leave without noise and without being counted


# -- across sites ----------------------------------------------------------------------------------------------------


def test_replies_that_were_lost_or_refused_have_left_the_site(vectors, tmp_path):
    algorithm = algorithm_of(ALGORITHMS["fedspm"], small_settings(privacy=NOISE), vectors)
    lost = []
    engine = loop_engine(vectors, algorithm, tmp_path, lambda step, site, content: None if step in lost else content)
    shared = begin(algorithm, engine)
    assert engine.releases.most == 0
    lost.append("maximise")
    with pytest.raises(TooFewSites):
        one_round(algorithm, engine, shared, 0)
    assert engine.releases.of == dict.fromkeys(vectors.names, 20 * 2)  # all attempts at the round
    del engine.grid.sites[10]  # who is not there is asked for nothing
    lost.clear()
    one_round(algorithm, engine, shared, 0)
    assert engine.releases.of == {"north": 40, "south": 42, "west": 42}


class Killed(BaseException):
    """The server dies."""


def test_a_server_that_dies_forgets_nothing_that_it_asked_for(vectors, tmp_path):
    block = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 2}
    values = {"components": 2, "rounds": 2, "workers": 1, "engine": "flower", "privacy": NOISE}
    config = resolve(values, {"predictor": block, "router": block, "sites": {"names": list(vectors.names)}})
    algorithm = ALGORITHMS["fedspm"](config, algorithm_of(FedAvg, config, vectors).task)
    run = Run.create(tmp_path / "run", config, manifest(vectors, algorithm, "test"))
    deadly = ["expect"]

    def between(step, site, content):
        if step in deadly:
            raise Killed
        return content

    grid = loop_engine(vectors, algorithm, tmp_path / "sites", between).grid
    nodes = {site.config.name: node for node, site in grid.sites.items()}

    def trained():
        post = Post(grid, Waiting(0.2, 1, poll=0.01))
        checkpoint = run.latest() if run.has_checkpoint() else None
        engine = FlowerEngine(post, algorithm, vectors.classes, "run1", nodes)
        train(config, algorithm, None, engine=engine, run=run, checkpoint=checkpoint)

    for steps in (["expect"], ["maximise"], []):  # before anything was answered, and after
        deadly[:] = steps
        if steps:
            with pytest.raises(Killed):
                trained()
    trained()
    lines = [line["privacy"]["releases"] for line in run.metrics()]
    assert lines[-1] == 1 + 2 + 2 * 2  # half a round, a whole one, and then both
    assert run.releases() == dict.fromkeys(vectors.names, lines[-1])
    (run.path / "releases.json").write_text("[3]")
    with pytest.raises(DamagedFile, match=r"releases\.json is damaged"):
        trained()


# -- what may leave --------------------------------------------------------------------------------------------------


class Curious(FedAvg):
    """A plugin that sends what it has not declared."""

    wanted = "look"

    def server_round(self, shared, exchange):
        exchange(getattr(self, self.wanted), shared)
        return shared

    def look(self, client, shared) -> tuple[Mean, dict]:
        return Mean(1, count=torch.tensor(1.0), peek=client.x[:5]), client.private

    def peer(self, client, shared) -> tuple[Mean, dict]:
        return Mean(1, peek=client.x[:5]), client.private

    def both(self, client, shared) -> tuple[Combined, dict]:
        return Combined(Mean(1), PerClient.of(client.name, peek=client.x[:5])), client.private

    def forge(self, client, shared) -> tuple[PerClient, dict]:
        return PerClient({client.name: {}, "somebody": {"count": client.x[:5]}}), client.private

    def personalise(self, client, shared) -> tuple[PerClient, dict]:
        return PerClient.of(client.name, peek=client.x[:5]), client.private


@pytest.mark.parametrize(
    ("wanted", "declared", "why"),
    [
        ("look", {"look"}, r"'peek' is not declared to leave a client in step look \(@step of Curious\.look\)"),
        ("both", {"both"}, r"'peek' is not declared to leave a client in step both \(@step of Curious\.both\)"),
        (
            "personalise",
            (),
            r"'peek' is not declared to leave a client in step personalise \(@step of Curious\.personalise\)",
        ),
        ("peer", (), "curious has no client step 'peer'"),
        ("forge", {"forge"}, "the reply to step forge has a row for 'somebody'; a client answers for itself only"),
    ],
)
def test_what_is_not_declared_does_not_leave_on_either_engine(vectors, tmp_path, monkeypatch, wanted, declared, why):
    monkeypatch.setitem(ALGORITHMS, "curious", Curious)
    declared = {name: Step(name, {"count": Sum()}) for name in declared}
    monkeypatch.setattr(Curious, "steps", {**Curious.steps, **declared})
    monkeypatch.setattr(Curious, "wanted", wanted)
    algorithm = algorithm_of(Curious, small_settings(algorithm="curious"), vectors)
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        with pytest.raises(Refused, match=why):
            one_round(algorithm, engine, shared, 0)
    with pytest.raises(FedSPMError, match=why):
        engine = loop_engine(vectors, algorithm, tmp_path)
        one_round(algorithm, engine, begin(algorithm, engine), 0)
