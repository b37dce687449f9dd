"""What a training on some data would see, and what is wrong with it: `fedspm data check`."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.federation import Federation
from fedspm.data.part import Part
from fedspm.data.readers.draft import Draft, ignoring
from fedspm.data.tables.cells import MISSING
from fedspm.data.tables.compare import Difference, differences
from fedspm.data.tables.table import Table

SKEW = 50  # the largest client has so many times the rows of the smallest
MANY = 5  # classes that are named one by one


@dataclass
class Findings:
    form: str
    shape: list[int] = field(default_factory=list)
    classes: list[Any] = field(default_factory=list)
    columns: list[str] | None = None
    table: dict[str, Any] | None = None  # how the columns of a table become vectors
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)  # train, test, labels, missing classes
    differences: list[Difference] = field(default_factory=list)  # between the tables of clients
    remarks: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)  # what was left out, and how many rows it is
    problems: list[str] = field(default_factory=list)  # it cannot be trained on
    warnings: list[str] = field(default_factory=list)  # it can, but look at this


def inspect_draft(
    draft: Draft, test_fraction: float, seed: int, validation_fraction: float = 0.0, min_count: int = 10
) -> Findings:
    """Of one's own data: everything that is wrong with it, not only the first."""
    if draft.problems:
        findings = Findings(draft.form)
        if not draft.test:
            draft.remarks.append(
                f"{test_fraction:g} of every client's rows will be held out for testing; they are counted as training "
                "rows"
            )
        labels = [y for _, y in (*draft.train.values(), *draft.test.values())]
        findings.classes = np.unique(np.concatenate(labels)).tolist() if labels else []
        for name, (x, y) in draft.train.items():
            findings.shape = findings.shape or list(x.shape[1:] if not isinstance(x, Table) else [len(x.columns)])
            tested = len(draft.test[name][1]) if name in draft.test else 0
            findings.clients[name] = _client(dict(zip(*_counts(y), strict=True)), tested, findings.classes)
    else:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                federation = Federation.from_draft(draft, test_fraction, seed, min_count)
                if validation_fraction:
                    federation = federation.with_validation(validation_fraction, seed)
            findings = inspect(federation, draft.form, min_count)
            findings.warnings += [str(each.message) for each in caught]
            if not draft.test:
                draft.remarks.append(f"{test_fraction:g} of every client's rows are held out for testing")
            if validation_fraction:
                draft.remarks.append(f"{validation_fraction:g} of the training rows stand in for the test rows")
        except FedSPMError as error:
            findings = Findings(draft.form)
            draft.problems.append(str(error))
            return inspect_draft(draft, test_fraction, seed, validation_fraction, min_count)
    findings.differences = differences({name: x for name, (x, _) in draft.train.items() if isinstance(x, Table)})
    findings.remarks = list(dict.fromkeys(draft.remarks))
    findings.skipped = draft.skipped
    findings.problems += draft.problems
    findings.warnings += _mixed_kinds(findings.classes)
    return findings


def inspect(federation: Federation, form: str, min_count: int = 10) -> Findings:
    """Of a federation, which can be trained on if it has anything to evaluate. Clients with fewer than `min_count` rows
    take no part in the statistics that standardise features."""
    findings = Findings(form, list(federation.shape), federation.classes.tolist())
    if federation.schema:
        findings.columns = list(federation.schema.names)
        findings.table = federation.schema.model_dump(mode="json")
    tests: Sequence[Part | None] = federation.test or [None] * len(federation.names)
    for name, part, test in zip(federation.names, federation.train, tests, strict=True):
        counts = torch.bincount(part.y, minlength=len(federation.classes)).tolist()
        labels = {label: count for label, count in zip(findings.classes, counts, strict=True) if count}
        findings.clients[name] = _client(labels, len(test) if test is not None else 0, findings.classes)
    if not any(client["test"] for client in findings.clients.values()):
        findings.problems.append(
            "no client has test rows, so nothing can be evaluated: choose a larger data.test_fraction, or add test rows"
        )
    findings.warnings = [
        *_about_clients(findings, min_count),
        *_about_classes(findings),
        *_about_names(findings),
        *_about_features(federation),
        *_about_doubles(federation),
    ]
    return findings


def _client(labels: dict[Any, int], test: int, classes: list[Any]) -> dict[str, Any]:
    missing = [label for label in classes if label not in labels]
    return {"train": sum(labels.values()), "test": test, "labels": labels, "missing": missing}


def _counts(y: np.ndarray) -> tuple[list[Any], list[int]]:
    labels, counts = np.unique(y, return_counts=True)
    return labels.tolist(), counts.tolist()


def _about_clients(findings: Findings, min_count: int) -> list[str]:
    said = []
    for name, client in findings.clients.items():
        if client["train"] < min_count:
            said.append(
                f"client {name!r} has {client['train']} training rows: too few to take part in the statistics that "
                "standardise x, and to learn much"
            )
        if not client["test"]:
            said.append(f"client {name!r} has no test rows: it is left out of every accuracy")
    sizes = {name: client["train"] for name, client in findings.clients.items()}
    small, large = min(sizes, key=lambda name: sizes[name]), max(sizes, key=lambda name: sizes[name])
    if sizes[large] >= SKEW * sizes[small]:
        said.append(
            f"client {large!r} has {sizes[large]:,} training rows, {small!r} has {sizes[small]}: routing prefers large "
            "clients, as it should if queries come in these proportions"
        )
    return said


def _about_classes(findings: Findings) -> list[str]:
    clients = [client["labels"] for client in findings.clients.values()]
    counts = {label: sum(labels.get(label, 0) for labels in clients) for label in findings.classes}
    rare = {label: count for label, count in counts.items() if count < 2}
    if len(rare) > MANY:
        quantity = (
            "; is it a quantity? There is no regression here" if all(isinstance(label, int) for label in counts) else ""
        )
        return [f"{len(rare)} of {len(counts)} classes have at most one training row in all clients together{quantity}"]
    return [
        f"class {label!r} has {'one training row' if count else 'no training row'} in all clients together"
        for label, count in rare.items()
    ]


def _about_names(findings: Findings) -> list[str]:
    """Words that stand for nothing known, as names of classes and clients."""
    named = [("class", label) for label in findings.classes] + [("client", name) for name in findings.clients]
    return [
        f"a {kind} is called {name!r}: if that stands for an unknown one, leave its rows out"
        for kind, name in named
        if str(name).strip().lower() in MISSING
    ]


def _about_features(federation: Federation) -> list[str]:
    """Constant features, and whole numbers that never repeat: probably identifiers."""
    if len(federation.shape) != 1:
        return []
    x = torch.cat([part.x for part in federation.train])
    names = federation.columns or [f"feature {k}" for k in range(x.shape[1])]
    flags = federation.schema.flags if federation.schema else [False] * x.shape[1]
    numbers = {name: x[:, k] for k, (name, flag) in enumerate(zip(names, flags, strict=True)) if not flag}
    numbers = {name: column[~column.isnan()] if column.isnan().any() else column for name, column in numbers.items()}
    said = [
        f"{name!r} is {column[0]:g} in every row{', in 32 bits' * bool(column[0].abs() > 1e6)}: it tells nothing"
        for name, column in numbers.items()
        if len(column) and (column == column[0]).all()
    ]
    for name, column in numbers.items():
        if len(column) > 20 and (column == column.round()).all() and len(column.unique()) == len(column):
            said.append(
                f"{name!r} is another whole number in every row: if it is an identifier, leave it out "
                f"({ignoring(name)})"
            )
    return said


def _about_doubles(federation: Federation) -> list[str]:
    """Rows that occur in more than one place."""
    said = []
    trained = {name: set(_rows(part.x)) for name, part in zip(federation.names, federation.train, strict=True)}
    home: dict[int, str] = {}
    for name, rows in trained.items():
        for row in rows:
            home.setdefault(row, name)
    elsewhere = sum(home[row] != name for name, rows in trained.items() for row in rows)
    if elsewhere:
        said.append(f"{elsewhere:,} training rows are in more than one client: routing cannot tell them apart")
    for name, part in zip(federation.names, federation.test or (), strict=False):
        if seen := sum(row in home for row in _rows(part.x)):
            said.append(
                f"client {name!r}: {seen:,} of {len(part):,} test rows are among the training rows as well, so "
                "accuracy will look better than it is"
            )
    return said


def _rows(x: Tensor) -> list[int]:
    return [hash(row.tobytes()) for row in x.numpy()]


def _mixed_kinds(classes: list[Any]) -> list[str]:
    numbers = [label for label in classes if isinstance(label, str) and label.lstrip("-").replace(".", "").isdecimal()]
    if numbers and len(numbers) < len(classes):
        words = next(label for label in classes if label not in numbers)
        return [f"some labels are numbers ({numbers[0]}) and some are words ({words}): all are taken as words"]
    return []
