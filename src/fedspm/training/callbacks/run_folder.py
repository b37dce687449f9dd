"""What a training writes into its run folder: logs, checkpoints, and the sketch of the baseline."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fedspm.base.errors import TooFewSites
from fedspm.mixture.onboarding import Onboards
from fedspm.runs.folder import Run
from fedspm.training.callbacks.base import Callback

if TYPE_CHECKING:
    from fedspm.training.training import Training


class RunLog(Callback):
    """Writes metrics.jsonl, and to absent.jsonl who was absent from a round. Part of every training with a folder."""

    def __init__(self, run: Run):
        self.run = run

    def on_round_end(self, training: "Training") -> None:
        if training.engine.absent:
            self.run.record({"round": training.round, "absent": dict(training.engine.absent)}, "absent.jsonl")

    def on_evaluation(self, training: "Training", metrics: dict[str, Any]) -> None:
        self.run.record(metrics)


class Checkpoints(Callback):
    """Saves a checkpoint before the first round, after every evaluation, at a stop, and across sites after every round.
    Part of every training with a folder."""

    def __init__(self, run: Run, keep: int):
        self.run, self.keep = run, keep

    def on_start(self, training: "Training") -> None:
        if training.resumed is None:
            self._save(training)

    def on_round_end(self, training: "Training") -> None:
        if training.metrics is not None or training.stopping or training.federation is None:
            self._save(training)

    def _save(self, training: "Training") -> None:
        self.run.save(training.checkpoint(), self.keep)


class BaselineSketch(Callback):
    """Makes the sketch that a later newcomer is compared with, after the last round. Part of every training.

    A training with noise makes none: its ε would not cover it. Neither does one that was stopped, if it has a run
    folder in which it can go on.
    """

    def on_end(self, training: "Training") -> None:
        algorithm, engine, run = training.algorithm, training.engine, training.run
        if not isinstance(algorithm, Onboards) or algorithm.settings.privacy.noise:
            return
        if run is not None and (not training.finished or run.has_sketch()):
            return
        if engine.round != training.round - 1:
            engine.begin_round(training.round - 1)
        engine.invite_all()
        with suppress(TooFewSites):  # without it the sites have to help a newcomer
            training.sketch = algorithm.onboarding.sketch(training.shared, engine)
            if run is not None:
                run.save_sketch(vars(training.sketch))
