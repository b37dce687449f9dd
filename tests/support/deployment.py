"""Real servers and sites on loopback, with TLS and keys: what their tests have in common."""

import torch

from fedspm import Federation
from fedspm.algorithms import build_algorithm
from fedspm.base.files import write_atomically
from fedspm.deploy.demo import across_sites
from fedspm.deploy.launch import LOG, launch
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.runs.config import resolve
from fedspm.testing.algorithm_checks import train_rounds
from fedspm.training.loop import begin
from small import toy_rows

BLOCK = {"encoder": "mlp", "dimension": 4, "batch_size": 32}
SITES = {"north": (0.0, False), "south": (1.5, True), "west": (-1.5, False), "east": (3.0, True)}


def sites_named(*names):
    train = {name: toy_rows(90 + 30 * i, *SITES[name], seed=i) for i, name in enumerate(names)}
    test = {name: toy_rows(60, *SITES[name], seed=10 + i) for i, name in enumerate(names)}
    return Federation.from_arrays(train, test)


def config_of(federation, rounds, algorithm="fedspm", **sites):
    settings = {
        "algorithm": algorithm,
        "components": 2,
        "rounds": rounds,
        "eval_every": 1,
        "predictor": BLOCK | {"steps": 3},
        "router": BLOCK | {"steps": 4},
        "em": {"hold": 1, "start": "random"},
    }
    return across_sites(resolve(settings), federation, **sites)


def handed_over(net, config, name="run"):
    """(run folder, attempt)"""
    run = net.folder / name
    run.mkdir()
    write_atomically(run / "config.toml", config.to_toml())
    return run, launch(run, net.superlink, net.certificates)


def log_of(run):
    return (run / LOG).read_text() if (run / LOG).exists() else ""


def in_process(federation, config):
    """(algorithm, shared state, private states) after the same rounds in this process"""
    algorithm = build_algorithm(config, Task.of_federation(federation))
    with LocalEngine(federation, seed=config.seed, workers=1) as engine:
        shared = train_rounds(algorithm, engine, begin(algorithm, engine), 0, config.rounds)
        return algorithm, algorithm.prepared(shared, engine), engine.privates


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
