"""What can be done around the rounds of a training: docs/callbacks.md."""

from fedspm.training.callbacks.base import Callback, require_callbacks
from fedspm.training.callbacks.diagnosis import LikelihoodDiagnosis
from fedspm.training.callbacks.early_stopping import EarlyStopping
from fedspm.training.callbacks.evaluation import Evaluation
from fedspm.training.callbacks.progress import Progress, StopOnInterrupt
from fedspm.training.callbacks.run_folder import BaselineSketch, Checkpoints, RunLog
from fedspm.training.callbacks.trackers import MLflow, TensorBoard

__all__ = [
    "BaselineSketch",
    "Callback",
    "Checkpoints",
    "EarlyStopping",
    "Evaluation",
    "LikelihoodDiagnosis",
    "MLflow",
    "Progress",
    "RunLog",
    "StopOnInterrupt",
    "TensorBoard",
    "require_callbacks",
]
