"""Do two configurations train the same model? Is a run folder still what it was when it was made?"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedspm.algorithms import algorithm_named
from fedspm.base.files import sha256
from fedspm.base.schema import fields
from fedspm.federated.settings import EM
from fedspm.runs.config import Config

SETTINGS_DIGEST = "config_sha256"  # in the manifest: of the settings in config.toml, wherever the data lies


def changed(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """Settings that change a result and are not the same, by key."""
    indifferent = {"diagnose_every", "workers", "device", "engine", "keep_checkpoints", "tensorboard"}
    if one.schedule == other.schedule:  # whether it was said, or is that of the rounds
        indifferent.add("horizon")
    if one.rows == other.rows:
        indifferent.add("data.path")
    if one.algorithm == other.algorithm:
        indifferent |= {f"em.{key}" for key in EM.model_fields if key not in algorithm_named(one.algorithm).em}
    both = {key: (one.value(key), other.value(key)) for key, _ in fields(Config) if key not in indifferent}
    return {key: (this, that) for key, (this, that) in both.items() if this != that}


def differences(one: Config, other: Config) -> list[str]:
    """The same as sentences: `key: this, now that`."""
    return [f"{key}: {this}, now {that}" for key, (this, that) in changed(one, other).items()]


def extends(now: Config, before: Config) -> bool:
    """Is it the same training with more rounds of the same schedule? Then it continues where that one ended."""
    return before.rounds < now.rounds <= before.schedule == now.schedule and changed(before, now).keys() == {"rounds"}


def settings_digest(settings: Mapping[str, Any]) -> str:
    """SHA-256 of what config.toml says, without data.path: data may be moved, and has a fingerprint."""
    data = {key: value for key, value in settings.get("data", {}).items() if key != "path"}
    return sha256(json.dumps({**settings, "data": data}, sort_keys=True, default=str).encode())


def changes_since(manifest: Mapping[str, Any], settings: Mapping[str, Any], folder: Path) -> list[str]:
    """What is not as it was when the run was made or last extended, one sentence each.

    Nothing is known, and nothing said, of a run whose manifest does not say how it was.
    """
    digest, version = manifest.get(SETTINGS_DIGEST), manifest.get("versions", {}).get("torch")
    found = []
    if digest not in (None, settings_digest(settings)):
        found.append(
            f"the settings in {folder / 'config.toml'} were changed since the run was made: rounds from here on "
            "are trained with other settings than those before"
        )
    if version not in (None, torch.__version__):
        found.append(
            f"{folder} was begun with torch {version}, and this is torch {torch.__version__}: the result will "
            "not be the same to the bit as without the stop"
        )
    return found


def missing_metrics(folder: Path, metrics: Sequence[Mapping[str, Any]], done: int | None, every: int) -> list[str]:
    """A sentence if the metrics end before the last evaluation that the newest checkpoint, of round `done`, follows."""
    due = (done or 0) // every * every
    if not due or any(line["round"] >= due for line in metrics):
        return []
    return [f"{folder / 'metrics.jsonl'} is missing or lacks lines: what was evaluated up to round {due} is not known"]
