"""A federation: named clients, each with its own training rows and, if it has them, test rows."""

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.randomness import torch_generator
from fedspm.data.arrays import as_classes, as_input, as_rows, named_columns, places, require_finite, too_coarse

Arrays = tuple[Any, Any]  # (x, y): NumPy arrays, tensors or nested lists


@dataclass(frozen=True, repr=False)
class Part:
    """Rows of one client: x is (n, channels, height, width) or (n, features), y is (n,) with class numbers."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        """Never the rows themselves: a notebook prints it."""
        return f"Part({len(self):,} rows of {' × '.join(map(str, self.x.shape[1:]))})"

    def take(self, rows: Tensor) -> "Part":
        return Part(self.x[rows], self.y[rows])

    def to(self, device: torch.device) -> "Part":
        return Part(self.x.to(device), self.y.to(device))


@dataclass(frozen=True, repr=False)
class Truth:
    """What only a constructed federation knows, kept aside for diagnosis: no engine or algorithm is handed it."""

    train: tuple[Tensor, ...]  # true component of every training row, one tensor per client
    test: tuple[Tensor, ...]
    mixing: Tensor  # (m, true components)
    sample: Tensor | None = None  # (true components, m or fewer, channels, height, width): one image, shifted by each
    naming: Tensor | None = None  # (m, true components, classes): how each calls every class, where names are permuted

    def meant(self, client: int, component: int, label: int) -> int | None:
        """The class that a client's label stands for in one of its true components; None if names are not permuted."""
        return None if self.naming is None else int((self.naming[client, component] == label).nonzero()[0])


@dataclass(frozen=True, repr=False)
class Federation:
    names: tuple[str, ...]
    classes: np.ndarray
    train: tuple[Part, ...]
    test: tuple[Part, ...] | None = None
    truth: Truth | None = None
    columns: tuple[str, ...] | None = None  # names of the features of vectors, where they have any

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
    ) -> "Federation":
        """One entry a client: `{"north": (x, y), "south": (x2, y2)}`.

        Labels may be integers or strings. Give `test` the same way, or a `test_fraction` to hold rows out. Features may
        have names: those of a data frame's columns, or `columns`.
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
        tables = (value[0] for value in train.values() if isinstance(value, tuple | list) and value)
        columns = tuple(columns) if columns else next(filter(None, map(named_columns, tables)), None)
        raw = {str(name): as_rows(value, f"client {name!r}", columns) for name, value in train.items()}
        classes = np.unique(np.concatenate([y for _, y in raw.values()])) if raw else np.empty(0)
        parts = [Part(x, as_classes(y, classes, f"client {name!r}")) for name, (x, y) in raw.items()]
        tests: tuple[Part, ...] | None = None
        if test is not None:
            tested = {str(name): value for name, value in test.items()}
            if unknown := sorted(set(tested) - set(names)):
                raise FedSPMError(
                    f"test rows are given for {unknown[0]!r}, which is not one of the clients {list(names)}"
                )
            tests = tuple(
                _test_part(tested.get(name), classes, name, part, columns)
                for name, part in zip(names, parts, strict=True)
            )
        elif test_fraction is not None:
            halves = [split(part, test_fraction, (seed, name)) for name, part in zip(names, parts, strict=True)]
            parts, tests = [kept for kept, _ in halves], tuple(held for _, held in halves)
        return cls(names, classes, tuple(parts), tests, columns=columns).checked()

    @classmethod
    def from_folder(
        cls,
        path: str | os.PathLike[str],
        *,
        size: int | None = None,
        test_fraction: float | None = 0.3,
        seed: int = 0,
    ) -> "Federation":
        """One folder per client with one folder of images per class, or one NumPy archive or table per client.

        `test_fraction` of every client's rows are held out where the data brings no test rows of its own; images are
        scaled to `size` × `size` pixels (8 to 512). docs/own-data.md shows every form.
        """
        from fedspm.data.readers.detect import read_own
        from fedspm.data.readers.draft import Reading, checked_size

        return read_own(_path(path, "from_folder"), Reading(size=checked_size(size))).federation(test_fraction, seed)

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
        size: int | None = None,
        test_fraction: float | None = 0.3,
        seed: int = 0,
    ) -> "Federation":
        """A CSV or parquet file with one row per sample: a client, a label, and features or the path of an image.

        Columns are found by their usual names where none is given; what has no other role is a feature.
        """
        from fedspm.data.readers.detect import read_own
        from fedspm.data.readers.draft import Reading, checked_size

        how = Reading(client_column, label_column, image_column, split_column, tuple(ignore), checked_size(size))
        return read_own(_path(path, "from_table"), how).federation(test_fraction, seed)

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
        size: int | None = None,
        test_fraction: float | None = 0.3,
        seed: int = 0,
    ) -> "Federation":
        """Data sets in memory: a Hugging Face `Dataset` with a client column, a dict of one a client, or a partitioner
        of Flower Datasets. `{"train": …, "test": …}` may stand for any data set. The rest is as in `from_table`.
        """
        from fedspm.data.readers.datasets import read_datasets
        from fedspm.data.readers.draft import Reading, checked_size

        how = Reading(client_column, label_column, image_column, split_column, tuple(ignore), checked_size(size))
        return read_datasets(datasets, how).federation(test_fraction, seed)

    def checked(self) -> "Federation":
        """This federation, or an error that names the client and what is wrong with it."""
        if len(self.names) < 2:
            raise FedSPMError(
                f"a federation needs at least two clients, this one has {len(self.names)}: "
                "with fewer there is nobody to route to or learn with"
            )
        if few := {name: len(part) for name, part in zip(self.names, self.train, strict=True) if len(part) < 2}:
            count = ", ".join(f"client {name!r} has {('no rows', 'only one row')[n]}" for name, n in few.items())
            raise FedSPMError(
                f"{count} to train on; every client needs at least two besides its test rows: add rows, leave the "
                "client out, or hold out less (test_fraction)"
            )
        shape = self.train[0].x.shape[1:]
        if self.columns and len(self.columns) != shape[0]:
            raise FedSPMError(f"{len(self.columns)} columns have names, but rows have shape {tuple(shape)}")
        for name, part in zip(self.names, self.train, strict=True):
            if part.x.shape[1:] != shape:
                raise FedSPMError(
                    f"client {name!r} has rows of shape {tuple(part.x.shape[1:])}, client {self.names[0]!r} of shape "
                    f"{tuple(shape)}; all clients need the same shape"
                )
            if part.y.unique().numel() == 1:
                label = self.classes[int(part.y[0])]
                warnings.warn(
                    f"client {name!r} has one class only ({label}): a head of its own learns nothing else",
                    stacklevel=3,
                )
        for where, parts in (("training", self.train), ("test", self.test or ())):
            for name, part in zip(self.names, parts, strict=False):
                require_finite(part.x, f"client {name!r}, {where} rows")
        if len(shape) == 1:
            names = self.columns or [f"feature {k}" for k in range(shape[0])]
            for sentence in too_coarse([part.x for part in self.train], names):
                warnings.warn(sentence, stacklevel=3)
        if len(self.classes) < 2:
            raise FedSPMError(
                f"all clients together have one class only ({self.classes[0]}); there is nothing to predict"
            )
        return self

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
        return [min(float(part.x.min()) for part in self.train), max(float(part.x.max()) for part in self.train)]

    @cached_property
    def fingerprint(self) -> str:
        """Changes when any name, label or value changes: a resumed run checks that its data is still the same."""
        digest = hashlib.sha256("\x1f".join(self.names).encode() + str(self.classes.tolist()).encode())
        for part in (*self.train, *(self.test or ())):
            digest.update(str(tuple(part.x.shape)).encode() + part.y.numpy().tobytes())
            if part.x.numel():
                digest.update(_memory(part.x))
        return digest.hexdigest()[:16]

    def without(self, names: Sequence[str]) -> "Federation":
        """The other clients, in the same order and with the same rows."""
        if unknown := [name for name in names if name not in self.names]:
            raise FedSPMError(f"there is no client {unknown[0]!r}; the clients are {', '.join(self.names)}")
        kept = [i for i, name in enumerate(self.names) if name not in names]
        truth = self.truth
        if truth is not None:
            train, test = (tuple(part[i] for i in kept) for part in (truth.train, truth.test))
            sample = truth.sample
            if sample is not None:
                sample = sample[:, [i for i in kept if i < sample.shape[1]]]
            naming = None if truth.naming is None else truth.naming[kept]
            truth = Truth(train, test, truth.mixing[kept], sample, naming)
        train_parts = tuple(self.train[i] for i in kept)
        test_parts = self.test and tuple(self.test[i] for i in kept)
        left = tuple(self.names[i] for i in kept)
        return Federation(left, self.classes, train_parts, test_parts, truth, self.columns)

    def arranged(self, columns: Sequence[str]) -> "Federation":
        """The same rows, with the features in the order of these names."""
        order = places(columns, self.columns or (), "the federation")
        train = tuple(Part(part.x[:, order], part.y) for part in self.train)
        test = self.test and tuple(Part(part.x[:, order], part.y) for part in self.test)
        return replace(self, train=train, test=test, columns=tuple(columns))

    def with_client(self, name: str, train: Part, test: Part) -> "Federation":
        """One more client, the last in order; the true components of a newcomer are not known."""
        if name in self.names:
            raise FedSPMError(f"there is a client {name!r} already; choose another name")
        tests = (*(self.test or (Part(part.x[:0], part.y[:0]) for part in self.train)), test)
        names, trains = (*self.names, name), (*self.train, train)
        return Federation(names, self.classes, trains, tests, columns=self.columns).checked()

    def with_validation(self, fraction: float, seed: int) -> "Federation":
        """Hold out a part of every client's training rows and evaluate on it; the test rows are not touched at all."""
        kept, held, truth_kept, truth_held = [], [], [], []
        for i, (name, part) in enumerate(zip(self.names, self.train, strict=True)):
            keep, hold = _split_rows(len(part), fraction, (seed, name, "validation"))
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
        return Federation(self.names, self.classes, tuple(kept), tuple(held), truth, self.columns)


def _path(path: Any, method: str) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise FedSPMError(
            f"Federation.{method} takes a path, this is a {type(path).__name__}; what is in memory goes to "
            "from_arrays, client by client, or to from_datasets"
        )
    return Path(path)


def _memory(x: Tensor) -> memoryview:
    channels_last = x.permute(0, 2, 3, 1) if x.ndim == 4 else x
    return channels_last.contiguous().numpy().data.cast("B")


def encoded(value: Arrays, classes: np.ndarray, shape: Sequence[int], where: str) -> Part:
    """Rows of a client that comes to others: of their shape, with labels among theirs."""
    x, y = as_rows(value, where)
    if classes.dtype.kind == "U" and y.dtype.kind in "iu":
        y = y.astype(str)
    return Part(as_input(x, shape, where), as_classes(y, classes, where))


def split(part: Part, fraction: float, key: tuple[int, str]) -> tuple[Part, Part]:
    """What is kept for training and what is held out for testing."""
    keep, hold = _split_rows(len(part), fraction, (*key, "test"))
    return part.take(keep), part.take(hold)


def _test_part(
    value: Arrays | None, classes: np.ndarray, name: str, like: Part, columns: tuple[str, ...] | None
) -> Part:
    if value is None:
        return Part(like.x[:0], like.y[:0])
    where = f"client {name!r}, test rows"
    x, y = as_rows(value, where, columns)
    return Part(as_input(x, like.x.shape[1:], where), as_classes(y, classes, where))


def _split_rows(n: int, fraction: float, key: tuple[int | str, ...]) -> tuple[Tensor, Tensor]:
    if not 0 < fraction < 1:
        raise FedSPMError(f"the fraction of rows to hold out must lie between 0 and 1, it is {fraction}")
    order = torch.randperm(n, generator=torch_generator(*key))
    held = round(fraction * n)
    return order[held:].sort().values, order[:held].sort().values
