"""A federation: named clients, each with its own training rows and, if it has them, test rows."""

import functools
import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedspm.base.errors import FedSPMError
from fedspm.data.encode import MIN_COUNT, TableOptions, encode_clients, reencoded
from fedspm.data.part import Arrays, Part, Truth, split_rows
from fedspm.data.readers.datasets import read_datasets
from fedspm.data.readers.detect import read_path
from fedspm.data.readers.draft import Draft, ReadOptions, checked_size
from fedspm.data.tables.schema import TableSchema
from fedspm.data.trainable import require_trainable


@dataclass(frozen=True, repr=False)
class Federation:
    """Clients in a fixed order: their names, their rows, and the classes that labels are numbers of."""

    names: tuple[str, ...]
    classes: np.ndarray
    train: tuple[Part, ...]
    test: tuple[Part, ...] | None = None
    truth: Truth | None = None
    schema: TableSchema | None = None  # what the features of vectors mean, where they have names
    skipped: Mapping[str, int] = field(default_factory=dict)  # what could not be read and was left out, and its rows

    def __repr__(self) -> str:
        tested = "none" if self.test is None else f"{sum(map(len, self.test)):,}"
        return (
            f"Federation({len(self.names)} clients, {len(self.classes)} classes, {sum(self.counts):,} training rows "
            f"of {' × '.join(map(str, self.shape))}, {tested} for testing)"
        )

    @classmethod
    def from_arrays(
        cls,
        train: Mapping[Any, Arrays],
        test: Mapping[Any, Arrays] | None = None,
        *,
        test_fraction: float | None = None,
        seed: int = 0,
        columns: Sequence[str] | None = None,
        categories: Sequence[str] = (),
        min_count: int = MIN_COUNT,
        schema: TableSchema | None = None,
        check: bool = True,
    ) -> "Federation":
        """One entry per client: `{"north": (x, y), "south": (x2, y2)}`.

        x is an array, or a data frame of pandas or polars with numbers, words, truth values, dates and missing values.
        Labels may be integers or strings. Give `test` the same way, or a `test_fraction` to hold rows out. `columns`
        names the features of arrays. In data frames `categories` are columns of numbers that stand for levels; a
        level that fewer than `min_count` rows of every client hold counts as `other`. `schema` is that of a model
        (`Federation.schema`), by which rows are encoded instead of one of their own. Without `check` the caller calls
        `checked` when all clients are there.
        """
        if test is not None and test_fraction is not None:
            raise FedSPMError("give either test or test_fraction, not both")
        for what, given in (("train", train), ("test", test)):
            if (given is not None or what == "train") and not isinstance(given, Mapping):
                raise FedSPMError(
                    f'{what} must be a dict with one entry a client: {{"north": (x, y), "south": (x2, y2)}}'
                )
            if given is not None and len({str(name) for name in given}) < len(given):
                raise FedSPMError(f"two clients in {what} have the same name; names must differ")
        names = tuple(str(name) for name in train)
        tested = None if test is None else {str(name): value for name, value in test.items()}
        if unknown := sorted(set(tested or ()) - set(names)):
            raise FedSPMError(f"test rows are given for {unknown[0]!r}, which is not one of the clients {list(names)}")
        clients = {str(name): value for name, value in train.items()}
        how = TableOptions(categories, min_count, schema)
        classes, parts, tests, agreed = encode_clients(clients, tested, test_fraction, seed, columns, how)
        found = cls(names, classes, tuple(parts), tests, schema=agreed)
        return found.checked() if check else found

    @classmethod
    def from_folder(
        cls,
        path: str | os.PathLike[str],
        *,
        size: int | None = None,
        skip: bool = False,
        test_fraction: float | None = 0.3,
        seed: int = 0,
    ) -> "Federation":
        """One folder per client, and in it one folder of images per class; or a folder with one NumPy archive or one
        table per client.

        `test_fraction` of every client's rows are held out where the data brings no test rows of its own; images are
        scaled to `size` × `size` pixels (8 to 512), and with `skip` those that cannot be read are left out.
        docs/own-data.md shows every form.
        """
        draft = read_path(_path(path, "from_folder"), ReadOptions(size=checked_size(size), skip=skip))
        return cls.from_draft(draft, test_fraction, seed)

    @classmethod
    def from_table(
        cls,
        path: str | os.PathLike[str],
        *,
        client_column: str | None = None,
        label_column: str | None = None,
        image_column: str | None = None,
        split_column: str | None = None,
        ignore: Sequence[str] = (),
        categories: Sequence[str] = (),
        skip: bool = False,
        size: int | None = None,
        test_fraction: float | None = 0.3,
        seed: int = 0,
    ) -> "Federation":
        """A CSV or parquet file with one row per sample: a client, a label, and features or the path of an image.

        Columns are found by their usual names where none is given; what has no other role is a feature.
        """
        how = ReadOptions(
            client_column,
            label_column,
            image_column,
            split_column,
            tuple(ignore),
            tuple(categories),
            skip,
            checked_size(size),
        )
        return cls.from_draft(read_path(_path(path, "from_table"), how), test_fraction, seed)

    @classmethod
    def from_datasets(
        cls,
        datasets: Any,
        *,
        client_column: str | None = None,
        label_column: str | None = None,
        image_column: str | None = None,
        split_column: str | None = None,
        ignore: Sequence[str] = (),
        categories: Sequence[str] = (),
        skip: bool = False,
        size: int | None = None,
        test_fraction: float | None = 0.3,
        seed: int = 0,
    ) -> "Federation":
        """Data sets in memory: a Hugging Face `Dataset` with a client column, a dict with one per client, or a
        partitioner of Flower Datasets. `{"train": …, "test": …}` may stand for any data set. The rest is as in
        `from_table`.
        """
        how = ReadOptions(
            client_column,
            label_column,
            image_column,
            split_column,
            tuple(ignore),
            tuple(categories),
            skip,
            checked_size(size),
        )
        return cls.from_draft(read_datasets(datasets, how), test_fraction, seed)

    @classmethod
    def from_draft(
        cls,
        draft: Draft,
        test_fraction: float | None,
        seed: int,
        min_count: int = MIN_COUNT,
        schema: TableSchema | None = None,
        check: bool = True,
    ) -> "Federation":
        """What a reader found; rows are held out for testing where the data brings no test rows of its own."""
        draft.require_sound()
        how: dict[str, Any] = {"test": draft.test} if draft.test else {"test_fraction": test_fraction}
        how |= {"categories": draft.categories, "min_count": min_count, "schema": schema, "check": check}
        if draft.skipped:
            warnings.warn(
                f"{sum(draft.skipped.values()):,} rows are skipped: {next(iter(draft.skipped))}", stacklevel=3
            )
        return replace(cls.from_arrays(draft.train, seed=seed, **how), skipped=draft.skipped)

    def checked(self) -> "Federation":
        """This federation, or an error that names the client and what is wrong with it."""
        require_trainable(self.names, self.classes, self.train, self.test, self.schema)
        return self

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the features of vectors, where they have any."""
        return self.schema.features if self.schema else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row: (channels, height, width) or (features,)."""
        return tuple(self.train[0].x.shape[1:])

    @property
    def counts(self) -> tuple[int, ...]:
        """Training rows of each client: n_i."""
        return tuple(len(part) for part in self.train)

    @property
    def range(self) -> list[float]:
        """Smallest and largest value of the training rows."""
        known = [part.x[~part.x.isnan()] if part.x.isnan().any() else part.x for part in self.train]
        return [min(float(x.min()) for x in known if len(x)), max(float(x.max()) for x in known if len(x))]

    @cached_property
    def fingerprint(self) -> str:
        """Changes when any name, label or value changes: a resumed run checks that its data is still the same."""
        digest = hashlib.sha256("\x1f".join(self.names).encode() + str(self.classes.tolist()).encode())
        for part in (*self.train, *(self.test or ())):
            part.add_to(digest)
        return digest.hexdigest()[:16]

    def without(self, names: Sequence[str]) -> "Federation":
        """The other clients, in the same order and with the same rows."""
        if unknown := [name for name in names if name not in self.names]:
            raise FedSPMError(f"there is no client {unknown[0]!r}; the clients are {', '.join(self.names)}")
        kept = [i for i, name in enumerate(self.names) if name not in names]
        truth = self.truth
        if truth is not None:
            for_training, for_test = (tuple(part[i] for i in kept) for part in (truth.train, truth.test))
            sample = truth.sample
            if sample is not None:
                sample = sample[:, [i for i in kept if i < sample.shape[1]]]
            naming = None if truth.naming is None else truth.naming[kept]
            truth = Truth(for_training, for_test, truth.mixing[kept], sample, naming)
        train, test = tuple(self.train[i] for i in kept), self.test and tuple(self.test[i] for i in kept)
        return replace(self, names=tuple(self.names[i] for i in kept), train=train, test=test, truth=truth)

    def arranged(self, schema: TableSchema) -> "Federation":
        """The same rows as vectors of another schema, that of a model: columns are matched by name."""
        if self.schema is None or self.schema == schema:
            return self
        recode = functools.partial(reencoded, old=self.schema, new=schema, where="the federation")
        train, test = tuple(map(recode, self.train)), self.test and tuple(map(recode, self.test))
        return replace(self, train=train, test=test, schema=schema)

    def with_client(self, name: str, train: Part, test: Part) -> "Federation":
        """One more client, the last in order; the true components of a newcomer are not known."""
        if name in self.names:
            raise FedSPMError(f"there is a client {name!r} already; choose another name")
        tests = (*(self.test or (Part(part.x[:0], part.y[:0]) for part in self.train)), test)
        names, trains = (*self.names, name), (*self.train, train)
        return replace(self, names=names, train=trains, test=tests, truth=None).checked()

    def with_validation(self, fraction: float, seed: int) -> "Federation":
        """Hold out a part of every client's training rows and evaluate on it; the test rows are not touched at all."""
        kept, held, truth_kept, truth_held = [], [], [], []
        for i, (name, part) in enumerate(zip(self.names, self.train, strict=True)):
            keep, hold = split_rows(len(part), fraction, (seed, name, "validation"))
            if len(keep) < 2:
                raise FedSPMError(
                    f"data.validation_fraction = {fraction:g} leaves {len(keep)} of the {len(part)} training rows of "
                    f"client {name!r}; every client needs at least two: choose a smaller one"
                )
            kept.append(part.take(keep))
            held.append(part.take(hold))
            if self.truth is not None:
                truth_kept.append(self.truth.train[i][keep])
                truth_held.append(self.truth.train[i][hold])
        if not any(map(len, held)):
            raise FedSPMError(
                f"data.validation_fraction = {fraction:g} holds out no row of any client, the largest has "
                f"{max(self.counts)} training rows; choose a larger one"
            )
        truth = self.truth and replace(self.truth, train=tuple(truth_kept), test=tuple(truth_held))
        return replace(self, train=tuple(kept), test=tuple(held), truth=truth)


def _path(path: Any, method: str) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise FedSPMError(
            f"Federation.{method} takes a path, this is a {type(path).__name__}; what is in memory goes to "
            "from_arrays, client by client, or to from_datasets"
        )
    return Path(path)
