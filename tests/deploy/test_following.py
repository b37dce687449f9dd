"""Whoever follows a run across sites learns how their own attempt ends, also if nobody can tell any more."""

import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from flwr.app import Context, RecordDict
from flwr.common.config import parse_config_args
from flwr.serverapp import Grid

from fedspm.base.errors import FedSPMError
from fedspm.base.files import write_atomically
from fedspm.deploy import launch as launching
from fedspm.deploy import server
from fedspm.deploy.launch import LOG, follow, launch
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run


@pytest.fixture
def handed_over(tmp_path, monkeypatch):
    """Launches the run in `tmp_path`; its ServerApp would get the context that is returned beside the attempt."""

    def hand_over():
        asked = []
        monkeypatch.setattr(launching, "flwr", lambda home, *arguments: asked.extend(arguments))
        attempt = launch(tmp_path, "127.0.0.1:1", None)
        settings = parse_config_args(asked[asked.index("--run-config") + 1 :])
        return attempt, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=settings)

    return hand_over


def end(context, monkeypatch, how=None):
    """The ServerApp of that context ends: well, or with an exception."""

    def serve_run(grid, folder, log):
        if how:
            raise how

    monkeypatch.setattr(server, "serve_run", serve_run)
    server.main(Mock(spec=Grid), context)


def test_a_server_that_ends_late_does_not_end_the_attempt_after_it(tmp_path, handed_over, monkeypatch):
    """The SuperLink is killed, its ServerApp notices that only after the run was handed to a new SuperLink."""
    _, old = handed_over()
    attempt, new = handed_over()
    with pytest.raises(SystemExit):
        end(old, monkeypatch, SystemExit(1))
    with pytest.raises(FedSPMError, match="nobody works on"):  # and not: the server was stopped
        follow(tmp_path, attempt, print, silence=0.1)
    end(new, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        end(old, monkeypatch, KeyboardInterrupt())  # later still
    follow(tmp_path, attempt, print, silence=0.1)


def test_why_an_attempt_failed_is_told_to_whoever_follows_it(tmp_path, handed_over, monkeypatch):
    attempt, context = handed_over()
    end(context, monkeypatch, FedSPMError("these sites did not come within 5 s: west"))
    with pytest.raises(FedSPMError, match=r"did not come within 5 s: west; go on with: fedspm federation resume"):
        follow(tmp_path, attempt, print)
    handed_over()
    assert not list(tmp_path.glob("outcome*"))  # how earlier attempts ended is not kept


def test_a_new_server_waits_for_one_that_is_still_ending(tmp_path, monkeypatch):
    """On a busy machine that takes longer than a few seconds."""
    write_atomically(tmp_path / "config.toml", resolve({"sites": {"names": ["north", "south"]}}).to_toml())
    ending = Run(tmp_path).locked()
    ending.__enter__()
    now = 0.0

    def later():
        nonlocal now
        now += 4.0
        if now == 20.0:
            ending.__exit__(None, None, None)
        return now

    def gather(*_):
        raise FedSPMError("it has begun")

    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=later))
    monkeypatch.setattr(server, "gather", gather)
    monkeypatch.setattr(server, "poll_parts_sooner", lambda: None)
    with pytest.raises(FedSPMError, match="it has begun"):
        server.serve_run(Mock(spec=Grid), tmp_path, server.Log(tmp_path / LOG))


def test_a_server_that_is_gone_is_noticed(tmp_path):
    (tmp_path / LOG).write_text("10:00:00 round 1 done\n10:00:09 round 2 done\n")
    said = []
    with pytest.raises(FedSPMError, match=r"nobody works on .* fedspm federation resume"):
        follow(tmp_path, "1", said.append, told=1, silence=0.1)
    assert said == ["10:00:09 round 2 done"]  # what an earlier call has told is not told again


def test_a_server_that_is_at_work_is_waited_for_however_silent_it_is(tmp_path, handed_over, monkeypatch):
    attempt, context = handed_over()
    with Run(tmp_path).locked():
        ending = threading.Timer(1.5, lambda: end(context, monkeypatch))
        ending.start()
        follow(tmp_path, attempt, print, silence=0.1)
    ending.join()
