"""Settings as nested tables: laid over each other, written with dots, typed after `--set`."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from fedspm.base.errors import FedSPMError


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables, later ones winning key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both_tables = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both_tables else value
    return result


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"router.steps": 20} as {"router": {"steps": 20}}."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *tables, last = key.split(".")
        inner: dict[str, Any] = {last: value}
        for table in reversed(tables):
            inner = {table: inner}
        nested = merged(nested, inner)
    return nested


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"router": {"steps": 20}} as {"router.steps": 20}."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return values


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """`--set router.steps=20` as TOML, with bare words taken as strings."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise FedSPMError(f"--set {assignment!r}: write key=value, for instance --set router.steps=20")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text
    return dotted(values)


def assignments(settings: Mapping[str, Any]) -> list[str]:
    """Nested tables as `parse_assignments` reads them: `router.steps=20`, with words bare where that reads the same."""
    return [f"{key}={_as_toml(value)}" for key, value in flat(settings).items()]


def _as_toml(value: Any) -> str:
    if isinstance(value, str | PurePath):
        text = str(value)
        return text if parse_assignments([f"key={text}"])["key"] == text else json.dumps(text, ensure_ascii=False)
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
