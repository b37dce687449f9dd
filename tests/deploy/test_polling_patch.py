"""Flower's waits are shortened where it has no settings."""

import inspect
import time

import pytest

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from flwr.app import Message, RecordDict
from flwr.common.constant import Status
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import http_grid
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.runtime import run_clientapp

from fedspm.deploy.polling_patch import (
    LONGEST,
    forget_messages_of_ended_runs,
    poll_messages_sooner,
    poll_parts_sooner,
)


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    for pull in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        monkeypatch.setattr(pull, "__kwdefaults__", dict(pull.__kwdefaults__))
    for name in ("time", "_pull_and_store_message"):
        monkeypatch.setattr(start_client_internal, name, getattr(start_client_internal, name))


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
    poll_parts_sooner()
    assert seconds_to_pull_what_is_late() < 0.5  # Flower's own: 1 + 2 seconds


def test_flower_leaves_the_waits_for_parts_at_their_defaults():
    for module in (http_grid, start_client_internal, run_clientapp):
        source = inspect.getsource(module)
        assert "pull_objects(" in source or "pull_and_inflate_object_from_tree(" in source
        assert "initial_backoff" not in source


def test_the_main_loop_of_a_supernode_sleeps_less_and_knows_the_time():
    poll_messages_sooner()
    began = time.monotonic()
    start_client_internal.time.sleep(3)
    assert time.monotonic() - began < LONGEST
    assert start_client_internal.time.monotonic() >= began


def test_a_message_of_a_run_that_has_ended_is_forgotten_and_so_is_its_task():
    """Its server was killed while the message was on its way: a site that waited for the rest would answer nobody."""
    forget_messages_of_ended_runs()
    objects = ObjectStoreFactory()
    state = NodeStateFactory(objects).state()
    state.store_run(Run.create_empty(run_id=7))
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1  # a message cannot be made without
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    message.metadata.__dict__["_message_id"] = message.object_id

    def ended(*_):
        raise RunNotRunningException

    received = start_client_internal._pull_and_store_message(
        state=state,
        object_store=objects.store(),
        node_config={},
        receive=lambda: (message, run_clientapp.get_object_tree(message)),
        get_run=None,
        get_fab=None,
        pull_object=ended,
        confirm_message_received=ended,
        trusted_entities=None,
    )
    assert received is None
    assert not state.get_messages_legacy(is_reply=False)
    assert not state.get_tasks(statuses=[Status.PENDING])
