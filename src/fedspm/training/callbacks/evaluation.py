"""Evaluate every few rounds and after the last one."""

from typing import TYPE_CHECKING

from fedspm.training.callbacks.base import Callback

if TYPE_CHECKING:
    from fedspm.training.training import Training


class Evaluation(Callback):
    """Evaluates after every `every` rounds and after the last one. Part of every training."""

    def __init__(self, every: int):
        self.every = every

    def on_round_end(self, training: "Training") -> None:
        if training.finished or training.round % self.every == 0:
            training.evaluate()
        if training.ending and training.federation is not None:
            training.prepare()  # whoever loads the checkpoint finds nothing stale in it

    def on_end(self, training: "Training") -> None:
        if training.resumed is not None and training.finished and training.resumed.round == training.round:
            training.evaluate_again()
