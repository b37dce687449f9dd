"""Flower and Ray without telemetry, update checks or installations of their own: what they find in the environment."""

import os
from collections.abc import Mapping

FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # or workers that train get what everything else on the machine leaves
    "OMP_NUM_THREADS": "1",
}


def be_quiet(wishes: Mapping[str, str]) -> None:
    """In this process and its children, where nobody has said otherwise."""
    os.environ.update({name: os.environ.get(name, value) for name, value in wishes.items()})
