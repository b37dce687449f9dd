"""Real processes on loopback, with TLS and keys, that are killed: `make test-faults`, whenever engines or deployment
change. They wait for Flower's delays; what is quick is in tests/deploy/test_deployment.py."""

import json
import random
import time

import pytest

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from commands import wait
from deployment import SITES, assert_same, config_of, handed_over, in_process, log_of, sites_named
from fedspm import Federation
from fedspm.algorithms import ALGORITHMS
from fedspm.deploy.demo import loopback
from fedspm.deploy.launch import follow
from fedspm.engines.flower.site_store import Store
from fedspm.federated.evaluation import Model, evaluate
from fedspm.runs.folder import Run
from small import toy_rows


@pytest.fixture(scope="module")
def sites():
    return sites_named(*SITES)


def test_every_algorithm_gives_the_same_bits_in_a_deployment(sites, tmp_path):
    """Ten runs, one after the other, on the same server and sites."""
    first = config_of(sites, 3, wait=300.0)
    with loopback(sites, first, tmp_path / "net", algorithms=tuple(ALGORITHMS)) as net:
        for name in ALGORITHMS:
            config = config_of(sites, 3, name, wait=300.0)
            run, attempt = handed_over(net, config, name)
            follow(run, attempt, lambda line: None, net.processes.require_alive)
            assert_same(Run(run).latest().shared, in_process(sites, config)[1])
            print(f"{name}: the same bits, {Run(run).last_metrics()['seconds_per_round']:.1f} s a round", flush=True)


def test_a_site_that_is_killed_is_left_out_and_comes_back(sites, tmp_path):
    config = config_of(sites, 40, wait=30.0)
    with loopback(sites, config, tmp_path / "net") as net:
        run, _ = handed_over(net, config)
        wait(lambda: "round 1 done" in log_of(run))
        net.processes.kill("site-west")
        wait(lambda: "left out: site 'west'" in log_of(run))
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

        wait(back)
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
    rows = ({name: toy_rows(300, *each, seed=s + i) for i, (name, each) in enumerate(SITES.items())} for s in (0, 10))
    federation = Federation.from_arrays(*rows)
    config = config_of(federation, 30, wait=60.0).model_copy(update={"eval_every": 30})
    algorithm, shared, privates = in_process(federation, config)
    undisturbed = system_accuracy(federation, algorithm, shared, privates)
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
