"""Small federations that train in a second."""

import os

import hypothesis
import pytest
import torch

from fedspm import Federation
from fedspm.base import files
from fedspm.federated.settings import Settings
from small import small_settings, toy_rows

hypothesis.settings.register_profile("unhurried", deadline=None)  # a machine that does other things is slow, not wrong
hypothesis.settings.load_profile("unhurried")

pytest_plugins = ["serving"]


def pytest_fixture_setup() -> None:
    """A network that somebody makes without a seed has the same weights whatever ran before."""
    torch.manual_seed(0)


def pytest_runtest_call() -> None:
    torch.manual_seed(0)


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


@pytest.fixture
def draw() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.fixture
def usual_mask(monkeypatch):
    """Everybody may read what is written, as on most machines."""
    before = os.umask(0o022)
    monkeypatch.setattr(files, "UMASK", 0o022)
    yield
    os.umask(before)
