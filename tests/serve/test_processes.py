"""`fedspm serve all`: every process of it, as a person would start and stop it."""

import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing import Pipe
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch

import fedspm as package
from commands import PATIENCE, fedspm, wait
from fedspm.base.errors import FedSPMError
from fedspm.base.ports import free_port
from fedspm.serve import processes
from fedspm.serve.processes import STEADY


@pytest.fixture(scope="module")
def running(served):
    model, run, _ = served
    port = free_port()
    command = [sys.executable, "-m", "fedspm", "serve", "all", str(run), "--port", str(port)]
    command += ["--deadline", str(PATIENCE)]  # a node that is slow on a busy machine still answers itself
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, start_new_session=True, **piped)
    url = f"http://127.0.0.1:{port}"
    wait(lambda: all(client["up"] for client in httpx.get(f"{url}/v1/clients").json()))
    yield url, process, model
    process.kill()


def children(pid):
    lines = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, parent in map(str.split, lines.splitlines()) if int(parent) == pid]


def nodes(process):
    return [pid for server in children(process.pid) for pid in children(server)]


def test_the_python_client_answers_as_the_estimator(running, vectors):
    url, _, model = running
    x = torch.cat([part.x for part in vectors.test])
    with package.connect(url, seconds=PATIENCE) as there:
        assert (there.predict(x) == model.predict(x)).all()
        assert np.allclose(there.predict_proba(x.numpy()), model.predict_proba(x), atol=1e-6)
        assert np.allclose(there.route(x), model.route(x), atol=1e-6)
        assert there.ask(x[0])[0]["client"] in model.client_names_
        many = x.repeat(6, 1)  # more than a request takes
        assert (there.predict(many) == model.predict(many)).all()
        many[700] = float("nan")
        with pytest.raises(FedSPMError, match=r"row 189 .*\(counted from row 513\)"):
            there.predict(many)
        with pytest.raises(FedSPMError, match="a row has shape"):
            there.predict(x[:, :3])
    with pytest.raises(FedSPMError, match="does not answer"):
        package.connect("http://127.0.0.1:1").predict(x)


def test_a_killed_node_is_started_again_and_no_request_fails(running, vectors):
    url, process, _ = running
    x = vectors.test[0].x
    before = nodes(process)
    assert len(before) == 3
    os.kill(before[0], signal.SIGKILL)
    with package.connect(url, seconds=PATIENCE) as there:
        for _ in range(20):
            assert len(there.predict(x)) == len(x)
        wait(lambda: all(client["up"] for client in there.clients()) and len(nodes(process)) == 3)
    assert before[0] not in nodes(process)


def test_the_python_client_says_what_is_wrong_with_a_file_or_a_token(tmp_path):
    for files in ("missing.png", [tmp_path / "missing.png"], tmp_path):
        with pytest.raises(FedSPMError, match=r"(missing\.png|client.*) cannot be read: (No such|Is a dir)"):
            package.connect("http://127.0.0.1:1").ask(files)
    with pytest.raises(FedSPMError, match="the token has characters beyond printable ASCII"):
        package.connect("http://127.0.0.1:1", token="schlüssel")


def test_a_stop_finishes_what_has_begun_and_leaves_nobody_behind(running, vectors):
    url, process, _ = running
    family = [*children(process.pid), *nodes(process)]
    x, answered, failed = vectors.test[0].x[:4], [], []

    def call():
        with package.connect(url, seconds=PATIENCE) as there:
            while not failed:
                try:
                    answered.append(there.predict(x))
                except FedSPMError as error:
                    failed.append(str(error))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    wait(lambda: len(answered) > 8)
    os.killpg(process.pid, signal.SIGTERM)  # as a service manager does
    assert process.wait(PATIENCE) == 0
    said = process.stdout.read()
    assert said.count("has ended; it is started again") <= 1, said  # the one that was killed above
    assert "/v1/clients" not in said  # what a page asks for every few seconds fills no log
    for caller in callers:
        caller.join()
    # whoever came after the stop was refused or found nobody; nobody was cut off in the middle of an answer
    assert all("refused (503)" in each or "onnect" in each or "disconnected" in each for each in failed), failed
    wait(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in family))


def test_what_is_wrong_is_said_in_one_sentence(served, tmp_path):
    _, run, bundle = served
    node = bundle / "clients" / "north"

    def sentence(*arguments):
        done = fedspm(*arguments, check=False)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    assert "give --tls-cert and --tls-key" in sentence("serve", "node", node, "--host", "0.0.0.0")
    assert "is not the folder of a node" in sentence("serve", "node", run)
    (tmp_path / "nodes.toml").write_text('north = "http://127.0.0.1:1"')
    nodes = ("--nodes", tmp_path / "nodes.toml")
    assert "no address of the node of 'south'" in sentence("serve", "router", bundle / "router", *nodes)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = ("--port", taken.getsockname()[1])
        for service in (("all", run), ("node", node)):
            done = fedspm("serve", *service, *port, check=False)
            assert (done.returncode, done.stdout) == (1, "")  # nobody is told where the page would be
            assert "Address already in use; choose another" in done.stderr


def test_a_node_that_keeps_ending_is_started_after_longer_and_longer_pauses(monkeypatch, tmp_path):
    now, lives, starts = 0, 0, []

    def process(**_):
        return SimpleNamespace(start=lambda: starts.append(now), is_alive=lambda: now < starts[-1] + lives)

    context = SimpleNamespace(
        set_forkserver_preload=lambda modules: None,
        Pipe=lambda duplex: (SimpleNamespace(close=lambda: None), None),
        Process=process,
    )
    monkeypatch.setattr(processes.multiprocessing, "get_context", lambda kind: context)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now))
    supervisor = processes.NodeSupervisor(tmp_path, 1, "secret")
    supervisor.start()
    for now in range(200):
        lives = STEADY if now >= 120 else 0  # from then on it stays up for a while
        for _ in range(2):  # who ends at once is looked at at once
            supervisor.revive()
    assert starts == [0, 1, 3, 7, 15, 31, 63, 123, 183]


def test_a_node_that_cannot_be_started_now_is_tried_again(monkeypatch, tmp_path, caplog):
    def fails():
        raise OSError("too many open files")

    supervisor = processes.NodeSupervisor(tmp_path, 1, "secret")
    monkeypatch.setattr(supervisor, "start", fails)
    supervisor.revive()
    assert "cannot be started: too many open files" in caplog.text
    supervisor.stop()


def test_a_node_that_cannot_start_says_why_in_one_sentence(monkeypatch, tmp_path, caplog):
    for name in ("os.setsid", "log_to_stderr"):
        monkeypatch.setattr(f"fedspm.serve.processes.{name}", lambda *_: None)
    with pytest.raises(SystemExit, match="1"):
        processes._node(tmp_path, 1, "secret", (), Pipe(duplex=False)[0])
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        f"the node in {tmp_path} does not start"
    ]
