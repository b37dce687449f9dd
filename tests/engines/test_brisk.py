"""Flower's waits are shortened where it has no settings."""

import inspect
import time

import pytest

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from flwr.supercore.inflatable import inflatable_utils
from flwr.superlink.grid import http_grid
from flwr.supernode import start_client_internal
from flwr.supernode.runtime import run_clientapp

from fedspm.deploy.brisk import LONGEST, look_for_messages_soon, look_for_parts_soon


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    for pull in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        monkeypatch.setattr(pull, "__kwdefaults__", dict(pull.__kwdefaults__))
    monkeypatch.setattr(start_client_internal, "time", time)


def seconds_to_pull_what_is_late():
    tries = []

    def pull(part):
        tries.append(part)
        if len(tries) < 3:
            raise inflatable_utils.ObjectUnavailableError(part)
        return b"there"

    began = time.monotonic()
    assert inflatable_utils.pull_objects(["part"], pull) == {"part": b"there"}
    return time.monotonic() - began


def test_a_part_that_is_late_is_looked_for_again_soon():
    look_for_parts_soon()
    assert seconds_to_pull_what_is_late() < 0.5  # Flower's own: 1 + 2 seconds


def test_flower_leaves_the_waits_for_parts_at_their_defaults():
    for module in (http_grid, start_client_internal, run_clientapp):
        source = inspect.getsource(module)
        assert "pull_objects(" in source or "pull_and_inflate_object_from_tree(" in source
        assert "initial_backoff" not in source


def test_the_main_loop_of_a_supernode_sleeps_less_and_knows_the_time():
    look_for_messages_soon()
    began = time.monotonic()
    start_client_internal.time.sleep(3)
    assert time.monotonic() - began < LONGEST
    assert start_client_internal.time.monotonic() >= began
