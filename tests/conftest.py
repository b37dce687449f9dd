"""Small federations that train in a second."""

import numpy as np
import pytest
import torch

from fedspm import Federation
from fedspm.core.settings import Settings

pytest_plugins = ["serving"]


def toy_rows(n: int, shift: float, flip: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two hidden components four apart along the first axis; the label rule differs by component and by client."""
    random = np.random.default_rng(seed)
    component = random.integers(0, 2, n)
    x = random.normal(size=(n, 6)) + shift
    y = (x[:, 1] > shift) ^ (component == 1) ^ flip
    x[:, 0] += 4 * component
    return x.astype(np.float32), np.where(y, "ill", "well")


@pytest.fixture(scope="session")
def vectors() -> Federation:
    clients = {"north": (0.0, False), "south": (1.5, True), "west": (-1.5, False)}
    train = {name: toy_rows(90 + 30 * i, *how, seed=i) for i, (name, how) in enumerate(clients.items())}
    test = {name: toy_rows(60, *how, seed=10 + i) for i, (name, how) in enumerate(clients.items())}
    return Federation.from_arrays(train, test)


@pytest.fixture
def quick() -> Settings:
    """Few steps of small batches."""
    return small_settings()


def small_settings(**changes: object) -> Settings:
    block = {"dimension": 4, "batch_size": 32}
    values = {
        "components": 2,
        "rounds": 3,
        "predictor": {"encoder": "mlp", "momentum": 0.9, "steps": 3, **block},
        "router": {"encoder": "mlp", "momentum": 0.95, "steps": 4, **block},
        "em": {"hold": 1},
    }
    return Settings.model_validate(values | changes)


@pytest.fixture
def draw() -> torch.Generator:
    return torch.Generator().manual_seed(7)
