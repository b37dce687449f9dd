"""Metrics for TensorBoard and MLflow. Neither is needed to train; each is imported when it is used."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspm.base.errors import FedSPMError
from fedspm.base.layers import flat
from fedspm.training.callbacks.base import Callback

if TYPE_CHECKING:
    from fedspm.training.training import Training


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics that are one number, but for the round: those that a curve can be drawn of."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float) and name != "round"}


class TensorBoard(Callback):
    """Writes the metrics of every evaluation into a folder for TensorBoard."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._writer: Any = None

    def setup(self, training: "Training") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise FedSPMError("TensorBoard is not installed; pip install 'fedspm[tensorboard]'") from error
        self._writer = SummaryWriter(str(self.folder))

    def on_evaluation(self, training: "Training", metrics: dict[str, Any]) -> None:
        for name, value in numbers(metrics).items():
            self._writer.add_scalar(name, value, metrics["round"])
        self._writer.flush()

    def teardown(self, training: "Training") -> None:
        self._writer.close()
        self._writer = None


class MLflow(Callback):
    """Logs the settings, and the metrics of every evaluation, as one run of MLflow.

    Without a `tracking_uri` and an `experiment`, those that MLflow's environment names are used. Numbers on validation
    rows are called `validation.…`, ε is `privacy.epsilon`.
    """

    def __init__(self, experiment: str | None = None, run_name: str | None = None, tracking_uri: str | None = None):
        self.experiment, self.run_name, self.tracking_uri = experiment, run_name, tracking_uri
        self._mlflow: Any = None
        self._status = "FAILED"

    def setup(self, training: "Training") -> None:
        try:
            import mlflow
        except ImportError as error:
            raise FedSPMError("MLflow is not installed; pip install 'fedspm[mlflow]'") from error
        self._mlflow, self._status = mlflow, "FAILED"
        if self.tracking_uri is not None:
            mlflow.set_tracking_uri(self.tracking_uri)
        if self.experiment is not None:
            mlflow.set_experiment(self.experiment)
        mlflow.start_run(run_name=self.run_name)
        mlflow.log_params(flat(training.config.to_dict()))

    def on_evaluation(self, training: "Training", metrics: dict[str, Any]) -> None:
        found = numbers(metrics)
        for table in ("validation", "privacy"):
            found |= {f"{table}.{name}": value for name, value in numbers(metrics.get(table, {})).items()}
        self._mlflow.log_metrics(found, step=metrics["round"])

    def on_end(self, training: "Training") -> None:
        self._status = "FINISHED"

    def teardown(self, training: "Training") -> None:
        self._mlflow.end_run(self._status)
        self._mlflow = None
