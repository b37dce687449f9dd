"""`Callback`: what can be done around the rounds of a training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedspm.base.errors import FedSPMError

if TYPE_CHECKING:
    from fedspm.training.training import Training


class Callback:
    """Hooks of a training. Override those that you need; by default none does anything.

    The order is `setup`, `on_start`, for every round `on_round_start`, `on_round_end` and, if the round is evaluated,
    `on_evaluation`, then `on_end` and `teardown`. Callbacks are called in the order in which they were given; the last
    two hooks in the reverse order. Any hook may call `training.stop()`: the round under way is then the last one.
    """

    def setup(self, training: "Training") -> None:
        """Before anything is computed: open files, check that everything is there that you need."""

    def on_start(self, training: "Training") -> None:
        """Before the first round: `training.shared` and `training.engine` are there."""

    def on_round_start(self, training: "Training") -> None:
        """Before a round; `training.round` are done."""

    def on_round_end(self, training: "Training") -> None:
        """After a round, before it is evaluated and saved; `training.round` counts it."""

    def on_evaluation(self, training: "Training", metrics: dict[str, Any]) -> None:
        """After an evaluation, before the checkpoint of the same round."""

    def on_end(self, training: "Training") -> None:
        """After the last round, also if somebody stopped the training, but not after an error."""

    def teardown(self, training: "Training") -> None:
        """At the very end, also after an error: close what `setup` opened."""


def require_callbacks(callbacks: Sequence[Any]) -> list[Callback]:
    """The callbacks, or a sentence about what is none."""
    for each in callbacks:
        if not isinstance(each, Callback):
            found = f"the class {each.__name__}; write {each.__name__}()" if isinstance(each, type) else repr(each)
            raise FedSPMError(f"callbacks must extend fedspm.training.callbacks.Callback, one is {found}")
    return list(callbacks)
