"""Typed settings that refuse what they do not know, in one sentence that names the key and the nearest known one."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from fedspm.base.errors import FedSPMError


def _split(names: Any) -> Any:
    if isinstance(names, str):
        return [name.strip() for name in names.split(",")]
    listed = names if isinstance(names, list | tuple) else [names]
    return [str(name) if type(name) in (int, float) else name for name in listed]  # --set data.without=4


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]  # a list, or a text with commas


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting by its dotted key, those of the tables inside included."""
    for name, field in model.model_fields.items():
        if inner := _table(field):
            yield from fields(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def refuse_unknown_keys(values: Mapping[str, Any], whole: type[BaseModel]) -> None:
    _refuse_unknown_keys(values, whole, whole, "")


def problem(error: ValidationError, model: type[BaseModel]) -> str:
    """The first thing that is wrong: `router.steps = -1: input should be greater than or equal to 0`."""
    first = error.errors()[0]
    name, *rest = first["loc"] or ("",)
    inside = rest[:1] if name in model.model_fields and _table(model.model_fields[str(name)]) else []
    where = ".".join(map(str, [name, *inside]))
    given = "" if isinstance(first["input"], Mapping) else f" = {first['input']!r}"  # a table is only named
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}{given}: {message[0].lower()}{message[1:]}"


def _table(field: FieldInfo) -> type[BaseModel] | None:
    inner = field.annotation
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def _refuse_unknown_keys(values: Mapping[str, Any], whole: type[BaseModel], model: type[BaseModel], at: str) -> None:
    for key, value in values.items():
        if key not in model.model_fields:
            everywhere = [name for name, _ in fields(whole)]
            near = (
                [f"{at}{name}" for name in difflib.get_close_matches(str(key), model.model_fields, n=1, cutoff=0.8)]
                or difflib.get_close_matches(f"{at}{key}", everywhere, n=1, cutoff=0.5)
                or difflib.get_close_matches(str(key), [name.split(".")[-1] for name in everywhere], n=1, cutoff=0.5)
            )
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(model.model_fields)}"
            raise FedSPMError(f"unknown configuration key {f'{at}{key}'!r}{hint}")
        field = model.model_fields[key]
        if isinstance(value, bool) and field.annotation is not bool:
            raise FedSPMError(f"{at}{key} = {str(value).lower()}: a truth value makes no sense here")
        if inner := _table(field):
            if not isinstance(value, Mapping):
                raise FedSPMError(f"{at}{key} is a table with the keys {', '.join(inner.model_fields)}, not {value!r}")
            _refuse_unknown_keys(value, whole, inner, f"{at}{key}.")
