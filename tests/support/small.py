"""Rows and settings for trainings of a second."""

from pathlib import Path

import numpy as np

from fedspm.federated.settings import Settings
from fedspm.training.callbacks import Callback
from fedspm.training.training import Training


def toy_rows(n: int, shift: float, flip: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two hidden components four apart along the first axis; the label rule differs by component and by client."""
    random = np.random.default_rng(seed)
    component = random.integers(0, 2, n)
    x = random.normal(size=(n, 6)) + shift
    y = (x[:, 1] > shift) ^ (component == 1) ^ flip
    x[:, 0] += 4 * component
    return x.astype(np.float32), np.where(y, "ill", "well")


def small_settings(**changes: object) -> Settings:
    block = {"dimension": 4, "batch_size": 32}
    values = {
        "components": 2,
        "rounds": 3,
        "predictor": {"encoder": "mlp", "momentum": 0.9, "steps": 3, **block},
        "router": {"encoder": "mlp", "momentum": 0.95, "steps": 4, **block},
        "em": {"hold": 1},
        "robust": "norm",
    }
    return Settings.model_validate(values | changes)


class StopAfter(Callback):
    """Stops a training after a round, or never."""

    def __init__(self, round: int | None):
        self.round = round

    def on_round_end(self, training: Training) -> None:
        if training.round == self.round:
            training.stop()


def modes(folder: Path) -> dict[str, str]:
    """Who may do what with the files and folders in a folder, as `chmod` takes it."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: f"{path.stat().st_mode & 0o777:o}" for name, path in found.items()}
