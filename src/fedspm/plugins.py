"""What other packages add under a name, through entry points: algorithms, encoders, data sets (docs/extending.md)."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from fedspm.errors import FedSPMError

Kind = Literal["algorithms", "encoders", "data"]


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


def _points(kind: Kind) -> list[EntryPoint]:
    return list(dict.fromkeys(entry_points(group=f"fedspm.{kind}")))


def _origin(point: EntryPoint) -> str:
    package = point.dist.name if point.dist else "an unnamed package"
    return f"{package} ({point.value})"
