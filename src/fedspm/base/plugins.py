"""What other packages add under a name, through entry points: algorithms, encoders, data sets, transforms,
robust rules (docs/extending.md); and whose code may be run because a file names it."""

import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from shlex import quote
from typing import Any, Literal, NamedTuple

from fedspm.base.errors import FedSPMError

Kind = Literal["algorithms", "encoders", "data", "transforms", "robust"]
ENCODERS = ("resnet", "cnn", "mlp", "auto")  # of this package
KINDS: dict[Kind, str] = {
    "algorithms": "algorithm",
    "encoders": "encoder",
    "data": "data set",
    "transforms": "transform",
    "robust": "robust rule",
}


class NamedCode(NamedTuple):
    """What a configuration names and may not be part of this package."""

    kind: Kind
    name: str


def plugin(kind: Kind, name: str) -> Any | None:
    """What an installed package offers under this name; None if nobody does."""
    found = [point for point in _points(kind) if point.name == name]
    if not found:
        return None
    if len(found) > 1:
        raise FedSPMError(f"{name!r} is offered by {' and by '.join(map(_origin, found))}; uninstall one of them")
    try:
        return found[0].load()
    except Exception as error:  # whatever another package does wrong when it is imported
        raise FedSPMError(f"{name!r} of {_origin(found[0])} cannot be loaded: {error!r}") from error


def plugin_names(kind: Kind) -> list[str]:
    return sorted({point.name for point in _points(kind)})


def require_allowed(named: Iterable[NamedCode], allowed: Collection[str]) -> None:
    """Refuse what only a run folder or a bundle names, unless the operator allows it by the same name: to build it runs
    code from outside this package. Nothing is imported here."""
    for kind, name in named:
        if name in allowed:
            continue
        module, colon, _ = name.partition(":")
        offered = [_origin(point) for point in _points(kind) if point.name == name]
        whose = [f"the module {module}"] if colon and kind == "encoders" else offered
        if whose:  # an unknown name runs nothing, and is refused where it is looked for
            raise FedSPMError(
                f"the {KINDS[kind]} {name!r} is not part of FedSPM and would run code of {whose[0]}; if you trust that "
                f"code, allow it by name: --allow {quote(name)}, in Python allow=({name!r},)"
            )


@contextmanager
def working_directory_last() -> Iterator[None]:
    """While a name that the user gave is looked for: the working directory is searched too, after everything else."""
    added = "" not in sys.path
    if added:
        sys.path.append("")
    try:
        yield
    finally:
        if added:
            sys.path.remove("")


def _points(kind: Kind) -> list[EntryPoint]:
    return list(dict.fromkeys(entry_points(group=f"fedspm.{kind}")))


def _origin(point: EntryPoint) -> str:
    package = point.dist.name if point.dist else "an unnamed package"
    return f"{package} ({point.value})"
