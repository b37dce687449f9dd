"""Where a model comes from: data, seed, versions, command, machine. manifest.json of a run folder."""

import functools
import os
import platform
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedspm.base.errors import DamagedFile
from fedspm.base.files import read_json
from fedspm.data.federation import Federation
from fedspm.data.images import UNIT
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.sizes import encoder_sizes
from fedspm.version import __version__

ROOT = Path(__file__).parents[3]  # of a clone
LISTED = 100  # rows or files that were skipped
ELSEWHERE = "at the sites"  # fingerprint of rows that are not here


def manifest(federation: Federation, algorithm: Algorithm, command: str) -> dict[str, Any]:
    """Of a run whose rows are here."""
    return facts(algorithm, federation.classes, command) | {
        "data_fingerprint": federation.fingerprint,
        "range": federation.range,
        "skipped": {"rows": sum(federation.skipped.values()), "why": list(federation.skipped)[:LISTED]},
    }


def site_manifest(algorithm: Algorithm, classes: np.ndarray, pixels: bool) -> dict[str, Any]:
    """Of a run across sites, whose rows nobody here has seen; `pixels`: all say that theirs are as image files."""
    found = {"data_fingerprint": ELSEWHERE, "range": UNIT if pixels else None}
    return facts(algorithm, classes, "fedspm federation train") | found


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run folder, with everything in it that the program relies on."""
    content: dict[str, Any] = read_json(path)
    lists = ("clients", "counts", "classes", "shape")
    kinds = dict.fromkeys(lists, list) | {"data_fingerprint": str, "encoders": dict}
    if not isinstance(content, dict) or not all(isinstance(content.get(key), kinds[key]) for key in kinds):
        raise DamagedFile(f"{path} is damaged at one of {', '.join(kinds)}")
    return content


def facts(algorithm: Algorithm, classes: np.ndarray, command: str) -> dict[str, Any]:
    """What is known without a row."""
    return {
        "fedspm": __version__,
        "id": uuid.uuid4().hex[:16],
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": algorithm.settings.seed,
        "clients": list(algorithm.task.names),
        "counts": list(algorithm.task.counts),
        "classes": classes.tolist(),
        "shape": list(algorithm.task.shape),
        "table": algorithm.task.schema and algorithm.task.schema.model_dump(mode="json"),
        "components": algorithm.settings.components,
        "encoders": encoder_sizes(algorithm),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            **_commit(),
        },
        "machine": {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count()},
        "executable": sys.executable,
    }


@functools.cache
def _commit() -> dict[str, str]:
    """Which state of the repository, with `-dirty` if it was changed since; nothing of an installed package."""
    if not (ROOT / ".git").exists():
        return {}
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": said.stdout.strip()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
