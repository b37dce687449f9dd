"""What a network came with frozen: never sent twice, saved once, and its running statistics do not drift."""

import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from fedspm import FederatedClassifier
from fedspm.algorithms import build_algorithm
from fedspm.algorithms.fedavg import FedAvg
from fedspm.base.errors import DamagedFile
from fedspm.engines.flower import wire
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.nn.encoder import Encoder
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.runs.manifest import manifest
from fedspm.training.loop import begin, one_round, train
from postbox import loop_engine
from small import small_settings

ROUNDS = 3


def pretrained():
    """A frozen body with running statistics, and a last layer that is learnt."""
    body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU()).requires_grad_(False)
    return nn.Sequential(body, nn.BatchNorm1d(16), nn.Linear(16, 4))


@pytest.fixture
def fedavg(vectors):
    return FedAvg(small_settings(algorithm="fedavg"), Task.of_federation(vectors), {"predictor": pretrained()})


def trained(algorithm, engine):
    shared = start = begin(algorithm, engine)
    for number in range(ROUNDS):
        shared = one_round(algorithm, engine, shared, number)
    return start, shared


def test_frozen_statistics_stay_and_the_others_move(vectors, fedavg):
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        start, shared = trained(fedavg, engine)
    frozen = {name for name in shared if name.startswith("predictor.0.0.")}
    assert frozen == fedavg.frozen_names
    assert {"predictor.0.0.1.running_mean", "predictor.0.0.1.num_batches_tracked"} <= frozen
    assert all(torch.equal(shared[name], start[name]) for name in frozen)
    assert not torch.equal(shared["predictor.0.1.running_mean"], start["predictor.0.1.running_mean"])


def test_frozen_layers_normalise_as_in_evaluation_from_the_first_batch_on():
    body = nn.Sequential(nn.BatchNorm1d(4)).requires_grad_(False)
    encoder = Encoder("predictor", [nn.Sequential(body, nn.Linear(4, 2))], (4,))
    x = 5 + torch.randn(9, 4)
    state = encoder.initial()
    assert torch.equal(encoder(state, x, training=True), encoder(state, x))
    assert torch.equal(state["predictor.0.0.0.running_mean"], torch.zeros(4))


def test_statistics_without_parameters_follow_the_network():
    plain = nn.BatchNorm1d(4, affine=False)
    learns = Encoder("router", [nn.Sequential(plain, nn.Linear(4, 2))], (4,))
    still = Encoder("router", [nn.Sequential(plain, nn.Linear(4, 2)).requires_grad_(False)], (4,))
    assert not [name for name in learns.frozen if "running" in name]
    assert [name for name in still.frozen if "running" in name]


def test_frozen_tensors_are_sent_to_a_site_once_and_never_come_back(vectors, fedavg, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedspm.engines.flower.site.build_algorithm",
        lambda settings, task: FedAvg(settings, task, {"predictor": pretrained()}),
    )
    with LocalEngine(vectors, seed=0, workers=1) as local:
        _, expected = trained(fedavg, local)
    torch.set_num_threads(1)
    engine = loop_engine(vectors, fedavg, tmp_path)
    _, shared = trained(fedavg, engine)
    assert all(torch.equal(expected[name], shared[name]) for name in expected)
    assert engine.said == []
    down, up = [], []
    for way, site, step, content in engine.grid.seen:
        if step == "update" and site == "north":
            record = content["reply"] if way == "up" else content["shared"]
            (up if way == "up" else down).append(set(wire.to_tensors(record)) & fedavg.frozen_names)
    assert down == [fedavg.frozen_names, *[set()] * (ROUNDS - 1)]
    assert up == [set()] * ROUNDS
    assert engine.traffic.metrics() == local.traffic.metrics()
    learnt = sum(value.nbytes for name, value in shared.items() if name not in fedavg.frozen_names)
    assert engine.traffic.to["north"] == learnt


def test_a_site_that_lost_them_gets_them_again(vectors, fedavg, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedspm.engines.flower.site.build_algorithm",
        lambda settings, task: FedAvg(settings, task, {"predictor": pretrained()}),
    )
    engine = loop_engine(vectors, fedavg, tmp_path)
    shared = one_round(fedavg, engine, begin(fedavg, engine), 0)
    for file in tmp_path.rglob("frozen.safetensors"):
        if "north" in str(file):
            file.unlink()
    shared = one_round(fedavg, engine, shared, 1)
    assert "does not have the frozen tensors" in engine.absent["north"]
    one_round(fedavg, engine, shared, 2)
    assert engine.absent == {}


def test_checkpoints_share_one_file_of_frozen_tensors(vectors, tmp_path):
    config = resolve(
        {"algorithm": "fedavg", "rounds": 4, "eval_every": 2, "workers": 1, "keep_checkpoints": 3},
        {"predictor": {"encoder": "given", "steps": 2}},
    )
    algorithm = build_algorithm(config, Task.of_federation(vectors), {"predictor": pretrained()})
    run = Run.create(tmp_path / "run", config, manifest(vectors, algorithm, "test"))
    training = train(config, algorithm, vectors, run=run)
    (file,) = (tmp_path / "run").rglob("frozen.safetensors")
    written = file.stat().st_mtime_ns
    sizes = [path.stat().st_size for path in (tmp_path / "run").rglob("shared.safetensors")]
    assert len(sizes) == 3
    latest = run.latest()
    assert latest.frozen == algorithm.frozen_names
    assert all(torch.equal(value, latest.shared[name]) for name, value in training.shared.items())
    assert file.stat().st_mtime_ns == written
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedFile, match=r"frozen\.safetensors is damaged"):
        run.latest()


def test_the_servers_own_state_is_saved_and_never_sent(vectors, tmp_path):
    model = FederatedClassifier("fedadam", rounds=2, workers=1).fit(vectors)
    own = {name for name in model.model_.shared if name.startswith("adam.")}
    assert own
    model.save(tmp_path / "model")
    again = FederatedClassifier.load(tmp_path / "model").model_.shared
    assert own <= again.keys()
    (file,) = (tmp_path / "model").rglob("server.safetensors")
    assert file.exists()
    settings = small_settings(algorithm="fedadam")
    algorithm = build_algorithm(settings, Task.of_federation(vectors))
    engine = loop_engine(vectors, algorithm, tmp_path / "sites")
    trained(algorithm, engine)
    for way, _, step, content in engine.grid.seen:
        if (way, step) == ("down", "update"):
            assert not [name for name in wire.to_tensors(content["shared"]) if name.startswith("adam.")]
