"""Real processes on loopback, with TLS and keys, that are killed: `make test-faults`. They wait for Flower's delays."""

import json
import random
import shutil
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

import torch

from commands import fedspm
from fedspm import Federation
from fedspm.algorithms import ALGORITHMS, algorithm_named
from fedspm.config import resolve
from fedspm.deploy.demo import across_sites, loopback
from fedspm.deploy.launch import LOG, follow, launch, outcome_of
from fedspm.engines.local import LocalEngine
from fedspm.engines.store import Store
from fedspm.evaluation import Model, evaluate
from fedspm.files import write_atomically
from fedspm.runs import Run, task_of
from fedspm.training import begin, one_round
from small import toy_rows

BLOCK = {"encoder": "mlp", "dimension": 4, "batch_size": 32}
PATIENCE = 600  # seconds


@pytest.fixture(scope="module")
def sites():
    how = {"north": (0.0, False), "south": (1.5, True), "west": (-1.5, False), "east": (3.0, True)}
    train = {name: toy_rows(90 + 30 * i, *each, seed=i) for i, (name, each) in enumerate(how.items())}
    test = {name: toy_rows(60, *each, seed=10 + i) for i, (name, each) in enumerate(how.items())}
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
    run = net.folder / name
    run.mkdir()
    write_atomically(run / "config.toml", config.to_toml())
    return run, launch(run, net.superlink, net.certificates)


def wait_until(true, what):
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def log_of(run):
    return (run / LOG).read_text() if (run / LOG).exists() else ""


def in_process(federation, config):
    algorithm = algorithm_named(config.algorithm)(config, task_of(federation))
    with LocalEngine(federation, seed=config.seed, workers=1) as engine:
        shared = begin(algorithm, engine)
        for number in range(config.rounds):
            shared = one_round(algorithm, engine, shared, number)
    return shared


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def test_a_deployment_gives_the_same_bits_and_survives_the_death_of_its_server(sites, tmp_path):
    """Three rounds; the SuperLink dies with everything it runs after the first; a new one goes on with the rest."""
    config = config_of(sites, 3, wait=300.0, min_clients=4)
    with loopback(sites, config, tmp_path / "net") as net:
        run, attempt = handed_over(net, config)
        wait_until(lambda: "round 1 done" in log_of(run) or outcome_of(run, attempt).exists(), "the first round")
        net.processes.kill("superlink")
        shutil.rmtree(net.folder / "server" / "flower", ignore_errors=True)
        net.start_superlink()
        attempt = launch(run, net.superlink, net.certificates)
        follow(run, attempt, print, net.processes.require_alive)
    assert_same(Run(run).latest().shared, in_process(sites, config))
    assert not Run(run).latest().privates  # no private state ever came to the server
    assert "average_accuracy" in Run(run).last_metrics()
    assert "system_accuracy" not in Run(run).last_metrics()


def test_every_algorithm_gives_the_same_bits_in_a_deployment(sites, tmp_path):
    """Ten runs, one after the other, on the same server and sites."""
    first = config_of(sites, 3, wait=300.0)
    with loopback(sites, first, tmp_path / "net", algorithms=tuple(ALGORITHMS)) as net:
        for name in ALGORITHMS:
            config = config_of(sites, 3, name, wait=300.0)
            run, attempt = handed_over(net, config, name)
            follow(run, attempt, lambda line: None, net.processes.require_alive)
            assert_same(Run(run).latest().shared, in_process(sites, config))
            print(f"{name}: the same bits, {Run(run).last_metrics()['seconds_per_round']:.1f} s a round", flush=True)


def test_a_site_that_is_killed_is_left_out_and_comes_back(sites, tmp_path):
    config = config_of(sites, 40, wait=30.0)
    with loopback(sites, config, tmp_path / "net") as net:
        run, _ = handed_over(net, config)
        wait_until(lambda: "round 1 done" in log_of(run), "the first round")
        net.processes.kill("site-west")
        wait_until(lambda: "left out: site 'west'" in log_of(run), "west to be missed")
        came_back = time.monotonic()

        def back():
            if "site-west" in net.processes.running and net.processes.running["site-west"].poll() is not None:
                net.processes.running.pop("site-west")  # Flower keeps a dead node's seat for a while: exit code 305
            if "site-west" not in net.processes.running:
                net.start_site("west")
                time.sleep(5)
            lines = (run / "absent.jsonl").read_text().splitlines() if (run / "absent.jsonl").exists() else []
            last_missed = json.loads(lines[-1])["round"] if lines else 0
            done = [int(line.split()[2]) for line in log_of(run).splitlines() if line.endswith(" done")]
            return done[-1] > last_missed + 1

        wait_until(back, "west to be back")
        print(f"west was back after {time.monotonic() - came_back:.0f} s")


def keep_running(net, name):
    """What a service manager does: Flower keeps a dead node's seat for a while and refuses it (exit code 305)."""
    process = net.processes.running.get(f"site-{name}")
    if process is not None and process.poll() is not None:
        net.processes.running.pop(f"site-{name}")
    if f"site-{name}" not in net.processes.running:
        net.start_site(name)


def system_accuracy(federation, algorithm, shared, privates):
    return evaluate(Model(algorithm, shared, [privates[name] for name in federation.names]), federation)[
        "system_accuracy"
    ]


def test_thirty_rounds_with_a_site_killed_every_five(tmp_path):
    """System accuracy within two points of the undisturbed run; the heads are read from the sites' disks."""
    how = {"north": (0.0, False), "south": (1.5, True), "west": (-1.5, False), "east": (3.0, True)}
    rows = ({name: toy_rows(300, *each, seed=s + i) for i, (name, each) in enumerate(how.items())} for s in (0, 10))
    federation = Federation.from_arrays(*rows)
    config = config_of(federation, 30, wait=60.0).model_copy(update={"eval_every": 30})
    algorithm = algorithm_named(config.algorithm)(config, task_of(federation))
    with LocalEngine(federation, seed=config.seed, workers=1) as engine:
        shared = begin(algorithm, engine)
        for number in range(config.rounds):
            shared = one_round(algorithm, engine, shared, number)
        undisturbed = system_accuracy(federation, algorithm, shared, engine.privates)
    chance, killed = random.Random(0), []
    with loopback(federation, config, tmp_path / "net") as net:
        run, attempt = handed_over(net, config)

        def disturb():
            done = log_of(run).count(" done")
            if done < config.rounds and done >= 5 * (len(killed) + 1):
                killed.append(chance.choice(federation.names))
                if f"site-{killed[-1]}" in net.processes.running:
                    net.processes.kill(f"site-{killed[-1]}")
            for name in federation.names:
                keep_running(net, name)

        follow(run, attempt, print, disturb)
        opened = Run(run)
        states = {name: site.parent / "state" for name, site in net.sites.items()}
        privates = {name: Store.of(state, opened.id).newest() for name, state in states.items()}
    disturbed = system_accuracy(federation, algorithm, opened.latest().shared, privates)
    missed = [json.loads(line) for line in (run / "absent.jsonl").read_text().splitlines()]
    print(f"killed {', '.join(killed)}; {len(missed)} rounds lacked a site; system {disturbed:.3f} ({undisturbed:.3f})")
    assert len(killed) == 5
    assert missed
    assert disturbed > undisturbed - 0.02


def test_the_demo_runs_and_leaves_no_process(tmp_path):
    done = fedspm(
        *("federation", "demo", "--sites", 2, "--rounds", 1, "--out", tmp_path / "demo"),
        *("--set", "predictor.steps=1", "--set", "router.steps=1", "--set", "em.start=random"),
    )
    assert "all processes stopped" in done.stdout
    numbers = [int(line.split()[-1]) for line in done.stdout.splitlines() if " process " in line]
    assert len(numbers) == 3
    for number in numbers:
        assert not any(number == int(each.name) for each in _processes()), number


def _processes():
    return [each for each in Path("/proc").iterdir() if each.name.isdigit()]
