"""Every setting there is: its key, its default, what it may be, and what it means."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from fedspm.algorithms import ALGORITHMS
from fedspm.base.layers import flat
from fedspm.base.schema import fields
from fedspm.runs.config import OF_DATA, PRESETS, Config

KINDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}
OPTIONS = "options"


@dataclass(frozen=True)
class Setting:
    key: str
    default: Any
    instead: dict[str, Any]  # defaults of a preset or a data set, by its name
    values: str
    meaning: str

    @property
    def table(self) -> str:
        """Of a configuration file; none for the settings above its first table."""
        return self.key.rpartition(".")[0]

    @property
    def defaults(self) -> str:
        """`4.0; paper: 1.0; fed-isic2019: 1.0`"""
        return "; ".join([_shown(self.default), *(f"{name}: {_shown(value)}" for name, value in self.instead.items())])


def settings() -> list[Setting]:
    """Those of a run's configuration; in the place of `options` those of the methods that have any."""
    layers = {name: flat(layer) for name, layer in (PRESETS | OF_DATA).items()}
    preset = layers.pop("default")
    found: list[Setting] = []
    for key, field in fields(Config):
        if key == OPTIONS:
            found += _options()
            continue
        usual = preset.get(key, Config().value(key))
        instead = {name: layer[key] for name, layer in layers.items() if layer.get(key, usual) != usual}
        found.append(_setting(key, field, usual, instead))
    return found


def _options() -> Iterator[Setting]:
    for name, method in ALGORITHMS.items():
        for key, field in fields(method.Options):
            yield _setting(f"{OPTIONS}.{key}", field, field.default, {}, f"{name}: ")


def _setting(key: str, field: FieldInfo, default: Any, instead: dict[str, Any], whose: str = "") -> Setting:
    return Setting(key, default, instead, _values(field.annotation, field.metadata), f"{whose}{field.description}")


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, tuple | dict):
        return ", ".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values(annotation: Any, limits: list[Any]) -> str:
    """`whole number ≥ 1, or auto`"""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(map(str, inner))
    if hasattr(annotation, "__metadata__"):  # Annotated
        return _values(inner[0], [limit for field in annotation.__metadata__ for limit in field.metadata])
    if origin in (Union, types.UnionType):
        return ", or ".join(_values(each, limits) for each in inner if each is not type(None))
    if origin is tuple:
        return "names, with commas or as a list"
    if origin is dict:
        return "a table: name = path"
    said = " and ".join(filter(None, map(_limit, limits)))
    return " ".join(filter(None, [KINDS.get(annotation, "path"), said]))


def _limit(limit: Any) -> str:
    signs = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}
    if type(limit) not in signs:
        return ""
    sign, name = signs[type(limit)]
    return f"{sign} {getattr(limit, name):g}"
