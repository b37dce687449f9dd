"""Do two configurations train the same model?"""

from typing import Any

from fedspm.algorithms import algorithm_named
from fedspm.base.schema import fields
from fedspm.federated.settings import EM
from fedspm.runs.config import Config


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


def prolongs(now: Config, before: Config) -> bool:
    """Is it the same training with more rounds of the same schedule? Then it goes on where that one ended."""
    return before.rounds < now.rounds <= before.schedule == now.schedule and changed(before, now).keys() == {"rounds"}
