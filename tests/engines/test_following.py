"""Whoever follows a run across sites learns how it ends, also if nobody can tell any more."""

import json
import threading

import pytest

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from fedspm.deploy.launch import LOG, OUTCOME, follow
from fedspm.errors import FedSPMError
from fedspm.runs import Run


def test_a_server_that_is_gone_is_noticed(tmp_path):
    (tmp_path / LOG).write_text("10:00:00 round 1 done\n10:00:09 round 2 done\n")
    said = []
    with pytest.raises(FedSPMError, match=r"nobody works on .* fedspm federation resume"):
        follow(tmp_path, said.append, told=1, silence=0.1)
    assert said == ["10:00:09 round 2 done"]  # what an earlier call has told is not told again


def test_a_server_that_is_at_work_is_waited_for_however_silent_it_is(tmp_path):
    with Run(tmp_path).locked():
        end = threading.Timer(1.5, lambda: (tmp_path / OUTCOME).write_text(json.dumps({"done": True})))
        end.start()
        follow(tmp_path, print, silence=0.1)
    assert not end.is_alive()
