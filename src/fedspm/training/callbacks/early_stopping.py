"""Stop when the model no longer improves on validation rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fedspm.base.errors import FedSPMError
from fedspm.runs.checkpoints import Checkpoint
from fedspm.training.callbacks.base import Callback

if TYPE_CHECKING:
    from fedspm.training.training import Training


@dataclass
class EarlyStopping(Callback):
    """Stops a training that has not improved on its validation rows for `patience` evaluations.

    Validation rows are held out of the training rows: `FederatedClassifier(early_stopping=…)` does so, and so does
    `data.validation_fraction` of a run. Test rows are never looked at. `monitor` names a metric of which more is
    better; an improvement is one by more than `min_delta`.

    With `restore_best` the training ends with the state of its best evaluation, whether it was stopped or not, and
    `FederatedClassifier` keeps that model. A run folder keeps the state of the last round instead, so that the run can
    be resumed; its metrics.jsonl shows which round was best.
    """

    patience: int = 5
    monitor: str = "average_accuracy"
    min_delta: float = 0.0
    restore_best: bool = True
    best_round: int | None = field(default=None, init=False, compare=False)  # of the last training
    best_value: float | None = field(default=None, init=False, compare=False)
    _best: Checkpoint | None = field(default=None, init=False, repr=False, compare=False)
    _without_progress: int = field(default=0, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> "EarlyStopping | bool":
        """From what `to_dict` returned; True if it was the usual one."""
        given = {each.name: recorded[each.name] for each in fields(cls) if each.init}
        return (found := cls(**given)) == cls() or found

    def to_dict(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def setup(self, training: "Training") -> None:
        if self.patience < 1:
            raise FedSPMError(f"EarlyStopping(patience={self.patience}): wait for at least one evaluation")
        if training.validation is None and not training.config.data.validation_fraction:
            raise FedSPMError(
                "early stopping needs validation rows: FederatedClassifier(early_stopping=True, "
                "validation_fraction=0.1) holds them out of the training rows; a run does with data.validation_fraction"
            )
        self.best_round = self.best_value = self._best = None
        self._without_progress = 0

    def on_evaluation(self, training: "Training", metrics: dict[str, Any]) -> None:
        value = self._monitored(training, metrics)
        if self.best_value is None or value > self.best_value + self.min_delta:
            self.best_round, self.best_value, self._without_progress = metrics["round"], value, 0
            self._best = training.checkpoint() if self._restores(training) else None
        else:
            self._without_progress += 1
        if self._without_progress >= self.patience:
            training.stop(
                f"stopped after round {metrics['round']}: {self.monitor} on the validation rows was best after round "
                f"{self.best_round} ({self.best_value:.3f})"
            )
        if training.ending and self._best is not None and self._best.round != training.round:
            training.restore(self._best)

    def _restores(self, training: "Training") -> bool:
        return self.restore_best and training.run is None

    def teardown(self, training: "Training") -> None:
        self._best = None  # a state is large, and a fitted estimator is pickled with its callbacks

    def _monitored(self, training: "Training", metrics: dict[str, Any]) -> float:
        found = metrics if training.validation is None else metrics["validation"]
        value = found.get(self.monitor)
        if not isinstance(value, int | float):
            known = ", ".join(name for name, each in found.items() if isinstance(each, float))
            raise FedSPMError(f"EarlyStopping(monitor={self.monitor!r}): there is no such number; there are {known}")
        return float(value)
