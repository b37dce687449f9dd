"""Columns with names, of a table or a data set in memory: which is the client, the label, the image, a feature."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.images import ENDINGS, image_size, read_images
from fedspm.data.readers.draft import Draft, ReadOptions, as_category, bare, ignoring, listed, text_of, texts_of
from fedspm.data.tables.agree import UNNAMED
from fedspm.data.tables.cells import BadCells
from fedspm.data.tables.table import Table, read_columns

USUAL = {
    "client": ("client", "client_id", "center", "centre", "site", "hospital"),
    "label": ("label", "target", "class", "y"),
    "image": ("image", "img", "image_path", "path", "file_name", "filename", "file"),
    "split": ("split", "fold"),
}
Column = Any  # a list, a tuple, an array, or what a data set decodes when it is asked: it has a length and elements


@dataclass(frozen=True)
class Frame:
    """Named columns of one file or one data set. A client or split of all its rows is said once and needs no column."""

    where: str
    columns: Mapping[str, Column]
    client: str | None = None
    split: str | None = None
    folder: Path | None = None  # where image paths start
    class_names: Sequence[str] | None = None  # of labels that are numbers
    ragged: Mapping[int, str] = field(default_factory=dict)  # rows of the file that are not here, and why

    def numbers(self, rows: Sequence[int]) -> list[int]:
        """The numbers in the file of rows that are here; both are counted from one."""
        if not self.ragged:
            return list(rows)
        last = max([*rows, *self.ragged]) + len(self.ragged)
        here = [number for number in range(1, last + 1) if number not in self.ragged]
        return [here[row - 1] for row in rows]


def read_frames(draft: Draft, frames: Sequence[Frame], how: ReadOptions) -> Draft:
    """Find the roles of the columns in the first frame, then read all of them."""
    ignored = {name for frame in frames for name in frame.columns if name in how.ignore}
    roles, features = _roles(draft, frames[0], how, ignored)
    everywhere = set(frames[0].columns).intersection(*(frame.columns for frame in frames))
    features = [name for name in features if name in everywhere or not UNNAMED.match(name)]  # an index is left out
    complete = []
    for frame in frames:
        for sentence in frame.ragged.values():
            draft.fault(sentence)
        if lacking := [name for name in (*roles.values(), *features) if name not in frame.columns]:
            draft.problems.append(_only_in(lacking[0], frames[0], frame, features))
        elif features and (more := _more_than(frames[0], frame, how)):
            draft.problems.append(_only_in(more[0], frame, frames[0], more))
        elif "label" in roles and ("client" in roles or frame.client is not None):
            complete.append(frame)
    sources = [_sources(frame, frame.columns[roles["image"]]) if "image" in roles else None for frame in complete]
    size = image_size(how.size, [each for each in sources if each is not None])
    for frame, images in zip(complete, sources, strict=True):
        _read(draft, frame, roles, features, images, size, how)
    return draft.finish()


def _more_than(first: Frame, frame: Frame, how: ReadOptions) -> list[str]:
    """Columns of a frame that the first lacks and that could be features."""
    usual = USUAL["client"] if frame.client is not None else ()
    return [
        name
        for name in frame.columns
        if name not in (*first.columns, *how.ignore) and name.lower() not in usual and not UNNAMED.match(name)
    ]


def _only_in(name: str, here: Frame, there: Frame, features: Sequence[str]) -> str:
    fix = f"; add it, empty if need be, or leave it out everywhere: {ignoring(name)}" if name in features else ""
    return f"{there.where} has no column {name!r}, which {here.where} has{fix}"


def _roles(draft: Draft, frame: Frame, how: ReadOptions, ignored: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Role → column, and what is left as features; several columns that fit are a problem, not a guess."""
    names = [name for name in frame.columns if name not in how.ignore]
    newcomer = how.client is not None  # whose table need not have all that those of the others have
    for unknown in [name for name in how.ignore if name not in ignored and not newcomer]:
        draft.problems.append(f"{frame.where} has no column {unknown!r} to ignore; {_known(frame, unknown)}")
    given = {"client": frame.client, "split": frame.split}
    roles: dict[str, str] = {}
    for role, usual in USUAL.items():
        wanted = getattr(how, f"{role}_column")
        fitting = [name for name in names if name.lower() in usual]
        if newcomer and role == "client" and wanted not in frame.columns:
            wanted = None
        if wanted is not None and wanted not in frame.columns:
            draft.problems.append(f"{frame.where} has no {role} column {wanted!r}; {_known(frame, wanted)}")
        elif wanted is not None:
            roles[role] = wanted
        elif given.get(role) is not None:
            names = [name for name in names if name not in fitting]  # known already, and no feature
        elif len(fitting) > 1:
            draft.problems.append(
                f"{frame.where}: {' and '.join(map(repr, fitting))} may both be the {role}; "
                f"say which with --set data.{role}_column=NAME, or leave one out: --set data.ignore=NAME"
            )
        elif fitting:
            roles[role] = fitting[0]
        elif role in ("client", "label"):
            draft.problems.append(
                f"{frame.where}: no column is called {' or '.join(usual[:3])}; name the {role} column: "
                f"--set data.{role}_column=NAME; {_known(frame)}"
            )
    for role, name in roles.items():
        draft.remarks.append(f"the {role} is the column {name!r}")
    features = [] if "image" in roles else [name for name in names if name not in roles.values()]
    for unknown in [name for name in how.categories if name not in frame.columns and not newcomer]:
        draft.problems.append(f"{frame.where} has no column {unknown!r} of categories; {_known(frame, unknown)}")
    draft.categories = tuple(name for name in how.categories if name in features)
    if not features and "image" not in roles:
        draft.problems.append(f"{frame.where} has no columns left that could be features; {_known(frame)}")
    return roles, features


def _known(frame: Frame, wanted: str | None = None) -> str:
    near = difflib.get_close_matches(wanted, frame.columns, n=1) if wanted else []
    if near:
        return f"did you mean {near[0]!r}?"
    names = list(frame.columns)
    return f"its columns are {', '.join(names[:12])}{', …' if len(names) > 12 else ''}"


def _read(
    draft: Draft,
    frame: Frame,
    roles: Mapping[str, str],
    features: Sequence[str],
    images: Column | None,
    size: tuple[int, int],
    how: ReadOptions,
) -> None:
    named = _named(frame, frame.columns[roles["label"]])
    labels = draft.labels(named, f"{frame.where}, column {roles['label']!r}", frame.numbers)
    clients = [frame.client or ""] * len(labels)
    if frame.client is None:
        clients = [text or "" for text in texts_of(frame.columns[roles["client"]])]
        if missing := [j + 1 for j, name in enumerate(clients) if not name]:
            rows_here = listed(frame.numbers(missing))
            draft.fault(f"{frame.where}, column {roles['client']!r}: {rows_here} no client", len(missing))
    splits = _splits(draft, frame, roles, len(labels))
    if not len(labels):
        draft.problems.append(f"{frame.where} has no rows")
        return
    kept = list(range(len(labels)))
    x: Tensor | Table
    if images is not None:
        given = images if isinstance(images, list) else [None] * len(labels)  # others decode when they are asked
        names = [f"{frame.where}, row {j}{_path(source)}" for j, source in enumerate(given, 1)]
        x, kept, errors = read_images(images, names, size)
        for error in errors:
            draft.fault(str(error))
        draft.remarks.append(f"images are scaled to {x.shape[2]} × {x.shape[3]} pixels")
    else:
        chosen = {name: frame.columns[name] for name in features}

        bad: set[int] = set()  # rows, counted from one, with a cell that cannot be read

        def problem(name: str, why: FedSPMError) -> None:
            fix = f"; correct it or empty the cell; {as_category(name)}" if isinstance(why, BadCells) else ""
            said = why.sentence(frame.numbers(why.rows)) if isinstance(why, BadCells) else why
            sentence = f"{frame.where}: column {name!r} {said}{fix}; to leave the column out: {ignoring(name)}"
            if isinstance(why, BadCells):
                draft.fault(sentence, len(set(why.rows) - bad))
                bad.update(why.rows)
            else:
                draft.problems.append(sentence)

        x = read_columns(chosen, frame.where, how.categories, problem)
        if how.skip and bad:
            kept = [j for j in kept if j + 1 not in bad]
            x = x[kept]
    known = [(row, j) for row, j in enumerate(kept) if clients[j] and labels[j]]  # row of x, row of the table
    if len(known) < len(x):
        x = x[[row for row, _ in known]]
    rows = [j for _, j in known]
    draft.add(x, labels[rows], [clients[j] for j in rows], [splits[j] for j in rows])


def _splits(draft: Draft, frame: Frame, roles: Mapping[str, str], count: int) -> list[str]:
    if "split" not in roles:
        return [frame.split or "train"] * count
    splits = [(text or "").lower() for text in texts_of(frame.columns[roles["split"]])]
    if strange := next((split for split in splits if split not in ("train", "test")), None):
        draft.problems.append(
            f"{frame.where}, column {roles['split']!r}: found {strange!r}, expected train or test; if it says "
            f"something else, leave it out: {ignoring(roles['split'])}"
        )
    elif "" in splits:
        draft.problems.append(f"{frame.where}, column {roles['split']!r}: row {splits.index('') + 1} is empty")
    return splits


def _named(frame: Frame, labels: Column) -> Column:
    """Numbers of classes as the classes' names, where they are known."""
    names = frame.class_names
    if names is None:
        return labels
    numbers = map(bare, labels)
    return [names[int(j)] if isinstance(j, int | np.integer) and 0 <= j < len(names) else None for j in numbers]


# -- images ----------------------------------------------------------------------------------------------------------


def _sources(frame: Frame, values: Column) -> Column:
    """A list of paths where the column holds text; images and bytes as they are."""
    if len(values) and isinstance(values[0], str):
        return [_located(frame.folder, text_of(value) or "") for value in values]
    return values


def _path(source: Any) -> str:
    """`: scan.png` where an image has a path; its bytes or pixels would fill the screen."""
    path = source.get("path") if isinstance(source, dict) else source
    return f": {path}" if isinstance(path, str | Path) and path else ""


def _located(folder: Path | None, value: str) -> Path:
    """Beside the table or in `images` beside it; the ending may be left out."""
    folder = folder or Path()
    for place in (folder / value, folder / "images" / value):
        for ending in ("", *ENDINGS):
            if (candidate := place.with_name(place.name + ending) if value else place).is_file():
                return candidate
    return folder / value
