"""Kills: a training that is killed a hundred times ends with the same bits; queries are answered while nodes die."""

import http.client
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from commands import wait
from fedspm.base.tensors import tensors_digest
from fedspm.runs.folder import Run
from fire import ALICE
from small import toy_rows

pytestmark = pytest.mark.long
KILLS = 100
ROUNDS = 12

# the package is imported once; every training is a child of its own, which dies as any process would
TRAINER = """
import os, sys
import fedspm.cli, fedspm.training.loop, fedspm.runs.folder, fedspm.report.html, fedspm.engines.local
import torch
torch.set_num_threads(1)
for line in sys.stdin:
    arguments = line.split("\\t")
    child = os.fork()
    if not child:
        os.setsid()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        sys.argv = ["fedspm", *(each.strip() for each in arguments)]
        fedspm.cli.main()
        os._exit(0)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(status, flush=True)
"""


def digest(run):
    checkpoint = Run.open(run).latest()
    private = {f"{name}/{key}": value for name, each in checkpoint.privates.items() for key, value in each.items()}
    return checkpoint.round, tensors_digest(checkpoint.shared | private)


class Trainer:
    def __init__(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", TRAINER], stdin=pipe, stdout=pipe, text=True)

    def run(self, *arguments, kill_after=None):
        """The status of a command, which is killed after so many seconds if it has not ended by then."""
        self.process.stdin.write("\t".join(map(str, arguments)) + "\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        if kill_after is not None:
            timer = threading.Timer(kill_after, lambda: os.kill(child, signal.SIGKILL))
            timer.start()
        status = int(self.process.stdout.readline())
        if kill_after is not None:
            timer.cancel()
        return status


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.npz"
    parts = {name: toy_rows(60, 3.0 * k, bool(k % 2), k) for k, name in enumerate(("north", "south", "west"))}
    x, y = (np.concatenate([part[k] for part in parts.values()]) for k in (0, 1))
    np.savez(path, x=x, y=y, client=np.repeat(list(parts), 60))
    return path


def test_a_hundred_kills_leave_the_same_bits(rows, tmp_path):
    settings = ["--data", rows, "--rounds", ROUNDS, "--components", 2, "--eval-every", 1]
    for block in ("predictor", "router"):
        settings += ["--set", f"{block}.steps=2", "--set", f"{block}.dimension=4", "--set", "workers=1"]
    trainer, randomly = Trainer(), random.Random(0)
    try:
        began = time.monotonic()
        assert trainer.run("train", *settings, "--out", tmp_path / "whole") == 0
        whole, expected = time.monotonic() - began, digest(tmp_path / "whole")
        kills, ended, taken_up = 0, 0, 0
        until = time.monotonic() + 1800  # it matters only on a machine that does something else
        while kills < KILLS and time.monotonic() < until:
            run = tmp_path / f"run-{ended}"
            for _ in range(1000):
                begun = (run / "manifest.json").exists()
                taken_up += run.exists() and not begun
                command = ["resume", run] if begun else ["train", *settings, "--out", run]
                moment = randomly.uniform(0, whole / 8 if randomly.random() < 0.7 else whole / 2)
                status = trainer.run(*command, kill_after=None if kills >= KILLS else moment)
                assert status in (0, signal.SIGKILL), (command, status)
                if status == 0:
                    break
                kills += 1
            assert digest(run) == expected, f"run {ended} after {kills} kills"
            assert not list(run.rglob("*.fedspm-partial"))
            assert len((run / "metrics.jsonl").read_text().splitlines()) == ROUNDS
            ended += 1
        print(f"{kills} kills in {ended} trainings with the same bits; {taken_up} folders without a manifest taken up")
        assert kills >= KILLS
    finally:
        trainer.process.kill()


def nodes_of(process):
    lines = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in lines.splitlines()]
    servers = [pid for pid, parent in pairs if parent == process.pid]
    return [pid for pid, parent in pairs if parent in servers]


def test_no_query_fails_while_a_node_is_killed_every_five_seconds(service):
    stop, failed, answered = threading.Event(), [], []
    headers = {"content-type": "image/png", "authorization": f"Bearer {ALICE}"}

    def call():
        while not stop.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=120)
            connection.request("POST", "/v1/predict", service.image, headers)
            reply = connection.getresponse()
            text = reply.read()
            (answered if reply.status == 200 else failed).append(text)
            connection.close()

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    killed = 0
    until = time.monotonic() + 60
    while time.monotonic() < until:
        time.sleep(5)
        wait(lambda: nodes_of(service.process))
        os.kill(random.choice(nodes_of(service.process)), signal.SIGKILL)
        killed += 1
    stop.set()
    for caller in callers:
        caller.join()
    print(f"{killed} nodes killed, {len(answered)} answers, {len(failed)} failed")
    assert killed >= 5
    assert not failed, failed[:3]
    wait(lambda: all(client["up"] for client in service.clients()))
