"""Real processes on loopback that are killed, as far as that is quick; the rest: `make test-faults`."""

import os
import shutil

import pytest

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from commands import PATIENCE, fedspm, wait
from deployment import assert_same, config_of, handed_over, in_process, log_of, sites_named
from fedspm.deploy.demo import loopback
from fedspm.deploy.launch import follow, launch, outcome_of
from fedspm.runs.folder import Run


def test_a_deployment_gives_the_same_bits_and_survives_the_death_of_its_server(tmp_path):
    """Two rounds; the SuperLink dies with everything it runs after the first; a new one goes on with the rest."""
    sites = sites_named("north", "south")
    config = config_of(sites, 2, wait=float(PATIENCE), min_clients=2)
    with loopback(sites, config, tmp_path / "net") as net:
        run, attempt = handed_over(net, config)
        wait(lambda: "round 1 done" in log_of(run) or outcome_of(run, attempt).exists())
        net.processes.kill("superlink")
        shutil.rmtree(net.folder / "server" / "flower", ignore_errors=True)
        net.start_superlink()
        attempt = launch(run, net.superlink, net.certificates)
        follow(run, attempt, print, net.processes.require_alive)
    assert_same(Run(run).latest().shared, in_process(sites, config)[1])
    assert not Run(run).latest().privates  # no private state ever came to the server
    assert "average_accuracy" in Run(run).last_metrics()
    assert "system_accuracy" not in Run(run).last_metrics()


def test_the_demo_runs_and_leaves_no_process(tmp_path):
    done = fedspm(
        *("federation", "demo", "--sites", 2, "--rounds", 1, "--out", tmp_path / "demo"),
        *("--set", "predictor.steps=1", "--set", "router.steps=1", "--set", "em.start=random"),
    )
    assert "all processes stopped" in done.stdout
    numbers = [int(line.split()[-1]) for line in done.stdout.splitlines() if " process " in line]
    assert len(numbers) == 3
    assert not [number for number in numbers if os.path.exists(f"/proc/{number}")]
