"""Who is behind the nodes: before a run sites introduce themselves, and agree on a task."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import RecordDict

from fedspm.base.errors import FedSPMError, Refused
from fedspm.data.tables.agree import ColumnSummary, agreed_schema
from fedspm.data.tables.schema import TableSchema
from fedspm.engines.flower import wire
from fedspm.engines.flower.transport import Post
from fedspm.federated.task import Task
from fedspm.version import __version__


@dataclass(frozen=True)
class Introduction:
    """What a site says of itself before a run."""

    node: int
    rows: int
    shape: tuple[int, ...]
    classes: tuple[Any, ...]
    pixels: bool  # its values are as those of image files
    columns: tuple[ColumnSummary, ...] | None = None  # what it tells of the columns of a table


@dataclass(frozen=True)
class Silence:
    """A node that did not introduce itself is asked again, at longer and longer intervals."""

    until: float  # on the monotonic clock
    pause: float  # seconds


def introduce(
    post: Post, nodes: set[int], seconds: float, say: Callable[[str], None] = lambda line: None
) -> list[tuple[str, Introduction]]:
    """Who is behind these nodes, with the name that each site gives itself: several may give the same."""
    found: list[tuple[str, Introduction]] = []
    content = {node: wire.message({"tag": "join", "step": "join"}) for node in sorted(nodes)}
    for node, answer in post.send(content, seconds).items():
        header: wire.Header = {}
        try:
            header = wire.header_of(answer) if isinstance(answer, RecordDict) else {}
            classes = tuple(json.loads(header["classes"]))
            shape, pixels = tuple(map(int, header["shape"])), bool(header.get("pixels"))
            said = json.loads(header.get("columns", "null"))
            columns = None if said is None else tuple(map(ColumnSummary.model_validate, said))
            site = Introduction(node, int(header["rows"]), shape, classes, pixels, columns)
        except (Refused, KeyError, ValueError, TypeError) as error:
            why = header.get("why", repr(error)) if isinstance(answer, RecordDict) else answer
            say(f"node {node} did not introduce itself: {why}")  # somebody else's, or gone again
            continue
        name = str(header.get("site"))
        if header.get("version") != __version__:
            say(f"site {name!r} has fedspm {header.get('version')}, this server {__version__}: install the same")
        found.append((name, site))
    return found


def by_name(sites: Iterable[tuple[str, Introduction]]) -> dict[str, Introduction]:
    found: dict[str, Introduction] = {}
    for name, site in sites:
        if name in found:
            raise FedSPMError(f"two sites call themselves {name!r}; change `name` in the site.toml of one of them")
        found[name] = site
    return found


def agreed_task(sites: dict[str, Introduction], names: Sequence[str]) -> tuple[Task, np.ndarray]:
    """The task of sites that were introduced, in the order of `names`, and its classes."""
    schema = agreed_columns(sites, names)
    shapes = {(len(schema.features),) if schema else sites[name].shape for name in names}
    if len(shapes) > 1:
        known = ", ".join(f"{name} {sites[name].shape}" for name in names)
        raise FedSPMError(f"the sites have rows of different shapes: {known}; all need the same")
    worded = [name for name in names if any(isinstance(label, str) for label in sites[name].classes)]
    if 0 < len(worded) < len(names):
        raise FedSPMError(f"{', '.join(worded)} have strings as labels and the other sites numbers; use one kind")
    classes = agreed_classes([sites[name].classes for name in names])
    counts = [sites[name].rows for name in names]
    return Task(shapes.pop(), len(classes), tuple(names), tuple(counts), schema), classes


def require_rows(name: str, site: Introduction, most: int) -> None:
    """Shares of the mean follow from what sites claim: one that claims absurdly much would be the mean."""
    if not 1 <= site.rows <= most:
        raise FedSPMError(
            f"site {name!r} claims {site.rows:,} rows, not between 1 and sites.max_rows = {most:,}; "
            "ask it, and set a larger sites.max_rows if it is right"
        )


def require_shares(sites: Mapping[str, Introduction], most: float) -> None:
    """A site weighs in every mean, and in the prior of the routing, by the share of all rows that it claims. Of two
    sites one has half of them or more: there is nothing to judge."""
    total = sum(site.rows for site in sites.values())
    for name, site in sites.items():
        if len(sites) > 2 and site.rows > most * total:
            raise FedSPMError(
                f"site {name!r} claims {site.rows:,} of all {total:,} rows, a share of {site.rows / total:.3f} above "
                f"sites.max_share = {most:g}; ask it, and set a larger sites.max_share if it is right"
            )


def agreed_columns(sites: dict[str, Introduction], names: Sequence[str]) -> TableSchema | None:
    """How the columns of all sites become vectors, in the order of the first site; None if no columns have names."""
    told = {name: columns for name in names if (columns := sites[name].columns) is not None}
    if told and (nameless := [name for name in names if name not in told]):
        raise FedSPMError(
            f"the rows of site {next(iter(told))!r} have names of columns and those of site {nameless[0]!r} have none, "
            "so nobody knows whether they mean the same; write the rows of all sites with names (docs/deploy.md), or "
            "of none"
        )
    return agreed_schema(told) if told else None


def agreed_classes(listed: Sequence[tuple[Any, ...]]) -> np.ndarray:
    """In the order in which all sites list them, as one process would have it; sorted where their lists differ."""
    if len(set(listed)) == 1:
        return np.asarray(listed[0])
    return np.unique(np.concatenate([np.asarray(each) for each in listed]))
