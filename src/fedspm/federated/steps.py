"""A client step, and what is declared of it: what it sends, when it may be asked for, and how often.

The declaration stands right above the step, and everything that has to know reads it there:

    @step(uploads={"tau": Shares()}, when="round")
    def expect(self, client, shared): ...

- the gate refuses a step that is not declared, and a reply with anything else in it (`federated.gate`);
- clipping and noise act on what is an update or a share, and whoever draws noise counts it (`federated.transforms`);
- a server across sites checks what it reads (`engines.flower.wire`), and a site answers a step only when it is due and
  as often as it is declared (`engines.flower.request_guard`);
- docs/what-leaves.md is written from it (`report.what_leaves`).

A method that overrides a step without declaring anew keeps the declaration.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from fedspm.federated.replies import Combined, Mean, PerClient, Reply
from fedspm.federated.uploads import Shares, Upload

ATTEMPTS = 20  # at a round that too few sites answer

When = Literal["start", "round", "evaluation", "after training"]
Function = TypeVar("Function", bound=Callable[..., Any])


def always(algorithm: Any) -> bool:
    return True


@dataclass(frozen=True)
class Step:
    """What is declared of one client step."""

    name: str
    uploads: Mapping[str, Upload]  # by the name of a tensor, or by the first part of a dotted one
    when: When = "round"
    times: int | Callable[[Any], int] = 1  # different requests each time it is due; perhaps by the algorithm's settings
    used: Callable[[Any], bool] = always  # do the algorithm's settings use it?
    rows: Literal["train", "test"] = "train"  # which of the client's rows the step sees
    partial: bool = False  # a reply may hold some of the shared tensors and not the others
    in_process_only: bool = False  # a site never answers it: a request can be made up that has one row in its sum
    truth: bool = False  # it sees the hidden components of constructed data, which no other step does

    def upload(self, name: str) -> Upload | None:
        """How a tensor is declared; None if it is not."""
        return self.uploads.get(name) or self.uploads.get(name.split(".", maxsplit=1)[0])

    def most_times(self, algorithm: Any) -> int:
        """How often it may be asked for with other contents each time it is due."""
        return self.times(algorithm) if callable(self.times) else self.times

    @property
    def reply(self) -> type[Reply]:
        """What the step answers with."""
        kept_apart = {upload.apart for upload in self.uploads.values()}
        return Combined if len(kept_apart) == 2 else Mean if kept_apart == {False} else PerClient

    def most_noised(self, names: Iterable[str], components: int) -> int:
        """How many noised vectors a reply can hold at most: one update, and every tensor of shares. For a server that
        sees replies only if they arrive, and must count the others too."""
        update = any((upload := self.upload(name)) and upload.noised and not upload.apart for name in names)
        shares = [upload for upload in self.uploads.values() if isinstance(upload, Shares) and components > 1]
        return int(update) + len(shares)

    @property
    def exact(self) -> bool:
        """Does anything leave without noise, even where noise is wanted?"""
        return not all(upload.noised for upload in self.uploads.values())


def step(
    *,
    uploads: Mapping[str, Upload],
    when: When = "round",
    times: int | Callable[[Any], int] = 1,
    used: Callable[[Any], bool] = always,
    rows: Literal["train", "test"] = "train",
    partial: bool = False,
    in_process_only: bool = False,
    truth: bool = False,
) -> Callable[[Function], Function]:
    """Declare what the method below sends; see `Step` for what each argument means."""

    def declare(function: Function) -> Function:
        function.declaration = Step(  # type: ignore[attr-defined]
            function.__name__, dict(uploads), when, times, used, rows, partial, in_process_only, truth
        )
        return function

    return declare


def steps_of(algorithm: type) -> dict[str, Step]:
    """The steps that a class declares or inherits, in the order in which they are written."""
    found: dict[str, Step] = {}
    for cls in reversed(algorithm.__mro__):
        for name, member in vars(cls).items():
            declaration = getattr(member, "declaration", None)
            if isinstance(declaration, Step):
                found[name] = replace(declaration, name=name)
    return found
