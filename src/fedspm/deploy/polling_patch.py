"""Shorter waits between Flower's looks for messages and their parts, which have no setting. See docs/decisions/0008."""

import time
from collections.abc import Callable
from typing import Any

from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, pull_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import start_client_internal

GIVEN_UP = 600.0  # seconds after which a message is never complete: as long as a server waits by default
SHORTEST, LONGEST, GROWTH = 0.05, 1.0, 1.5  # seconds between two looks for a message, and by what they grow


class Backoff:
    """Waits from 0.05 s that grow to 1 s while nothing happens: the next exchange comes soon or much later."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._next = SHORTEST

    def wait(self) -> None:
        time.sleep(self._next)
        self._next = min(self._next * GROWTH, LONGEST)


class BackoffTime:
    """Replacement for `time` in Flower's main loop: back-off from 0.05 to 1 s, where Flower sleeps three seconds."""

    def __init__(self) -> None:
        self._backoff = Backoff()

    def sleep(self, seconds: float) -> None:
        if seconds < 3:  # it looks into its own memory for the site's reply: there was a message, another may follow
            self._backoff.reset()
        self._backoff.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def poll_messages_sooner() -> None:
    """Call it in a SuperNode's process."""
    start_client_internal.time = BackoffTime()  # type: ignore[assignment, attr-defined]


def poll_parts_sooner() -> None:
    """Call it in a process that receives messages. They are announced before all of their parts have arrived, and
    Flower looks for a missing part again after a second, then after two, four, …, for two hours. Parts of a message
    whose server was killed never come, and a site that waits for them answers nobody else."""
    for pull in (pull_objects, pull_and_inflate_object_from_tree):
        defaults = pull.__kwdefaults__
        assert defaults is not None
        defaults |= {"initial_backoff": SHORTEST, "max_time": GIVEN_UP}


def forget_messages_of_ended_runs() -> None:
    """Call it in a SuperNode's process. When a run ends while one of its messages is on its way, Flower drops the
    message but not its task: the end of a run is no `Exception` to it, and its clean-up catches nothing else. The site
    would take that task, wait for parts that never come, and answer nobody else until it has given up."""
    receive = start_client_internal._pull_and_store_message

    def receive_or_forget(*, pull_object: Any, confirm_message_received: Any, **others: Any) -> int | None:
        return receive(
            pull_object=_as_ordinary_error(pull_object),
            confirm_message_received=_as_ordinary_error(confirm_message_received),
            **others,
        )

    start_client_internal._pull_and_store_message = receive_or_forget  # type: ignore[assignment]


def _as_ordinary_error(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        try:
            return call(*arguments)
        except RunNotRunningException as ended:
            raise RuntimeError("its run has ended") from ended

    return called
