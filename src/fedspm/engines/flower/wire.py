"""What travels between the server and the sites: dicts of tensors as Flower records, and what a reply must look like.

A message is a header (`ConfigRecord`) and up to two dicts of tensors (`ArrayRecord`). Whatever a site sends is read
here and nowhere else: a reply that is not exactly what was asked for is refused, with a sentence that names the site.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import load, save

from fedspm.base.errors import Refused
from fedspm.base.tensors import Tensors, plain
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.gate import require_declared_reply, require_step
from fedspm.federated.replies import Combined, Mean, PerClient, Reply
from fedspm.federated.robust.reply_checks import check_kinds, require_finite, require_weight
from fedspm.federated.steps import Step
from fedspm.federated.transforms import decode, updates
from fedspm.federated.uploads import Sender, Shares, values_per_row

HEADER, SHARED, ARGUMENTS, REPLY, ROW = "fedspm", "shared", "arguments", "reply", "row"
PACKED, FORMAT = "tensors", "safetensors"
DTYPES = {torch.float16, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool}
KINDS: dict[type[Reply], str] = {Mean: "mean", PerClient: "rows", Combined: "both"}
INIT = Step("init_private", {}, when="start")  # a site joins a run: nothing but its name leaves
Header = dict[str, Any]
Signature = frozenset[tuple[str, tuple[int, ...], torch.dtype]]


@dataclass(frozen=True, order=True)
class Tag:
    """Which exchange of which run: turn 0 is the start, turn t + 1 is round t; an attempt is a repeated round."""

    run: str
    turn: int
    exchange: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.run}/{self.turn}/{self.exchange}/{self.attempt}"

    @classmethod
    def parse(cls, text: object) -> "Tag":
        run, *numbers = str(text).rsplit("/", 3)
        try:
            turn, exchange, attempt = map(int, numbers)
        except ValueError as error:
            raise Refused(f"{text!r} is not the tag of an exchange") from error
        return cls(run, turn, exchange, attempt)


# -- tensors and records ---------------------------------------------------------------------------------------------


def to_record(tensors: Tensors) -> ArrayRecord:
    """One array that holds them all, as safetensors: Flower makes several requests for every array of a record."""
    packed = save(plain(tensors))
    return ArrayRecord({PACKED: Array("uint8", (len(packed),), FORMAT, packed)})


def to_tensors(record: ArrayRecord) -> Tensors:
    """The tensors of a record, none of it trusted: nothing is unpickled, and only plain numbers are let through."""
    if list(record) != [PACKED] or record[PACKED].stype != FORMAT:
        raise Refused(f"the record holds {', '.join(record) or 'nothing'}, not one array of {FORMAT}")
    try:
        tensors: Tensors = load(record[PACKED].data)
    except Exception as error:  # whatever is wrong with bytes from elsewhere
        raise Refused(f"the tensors cannot be read: {error}") from error
    for name, value in tensors.items():
        if value.dtype not in DTYPES:
            raise Refused(f"{name!r} holds {value.dtype}, which is not a kind of number that is sent")
    return tensors


def message(header: Header, **tensors: Tensors) -> RecordDict:
    records: dict[str, Any] = {name: to_record(value) for name, value in tensors.items()}
    return RecordDict({HEADER: ConfigRecord(header), **records})


def request(header: Header, shared: Tensors, arguments: Tensors) -> RecordDict:
    """What the server asks. An empty dict is left out: Flower would make several requests for it all the same. The
    header says which are there, so that one that was lost is missed."""
    held = {name: value for name, value in ((SHARED, shared), (ARGUMENTS, arguments)) if value}
    return message(header | {"holds": list(held)}, **held)


def requested(content: RecordDict, name: str) -> Tensors:
    return tensors_of(content, name) if name in header_of(content).get("holds", (SHARED, ARGUMENTS)) else {}


def header_of(content: RecordDict) -> Header:
    record = content.get(HEADER)
    if not isinstance(record, ConfigRecord):
        raise Refused("the message has no header")
    return dict(record)


def tensors_of(content: RecordDict, name: str) -> Tensors:
    record = content.get(name)
    if not isinstance(record, ArrayRecord):
        raise Refused(f"the message has no {name!r}")
    return to_tensors(record)


# -- replies ---------------------------------------------------------------------------------------------------------


def reply_message(tag: object, site: str, rows: int, reply: Reply, more: Header | None = None) -> RecordDict:
    """A client step's answer as it goes to the server: the tensors themselves, not yet multiplied by the weight."""
    header = {"tag": str(tag), "site": site, "rows": rows} | (more or {})
    if isinstance(reply, PerClient):
        return message(header | {"kind": "rows"}, **{REPLY: reply.rows.get(site, {})})
    if isinstance(reply, Combined):
        weight, tensors = reply.mean.as_sent()
        return message(header | {"kind": "both", "weight": weight}, **{REPLY: tensors, ROW: reply.rows.rows[site]})
    weight, tensors = reply.as_sent()
    return message(header | {"kind": "mean", "weight": weight}, **{REPLY: tensors})


def refusal_message(tag: object, site: str, why: str) -> RecordDict:
    return message({"tag": str(tag), "site": site, "kind": "refusal", "why": why})


def is_reply(content: RecordDict) -> bool:
    """Is it an answer, good or bad, and not a site's sentence why it gives none?"""
    header = content.get(HEADER)
    return not isinstance(header, ConfigRecord) or header.get("kind") != "refusal"


@dataclass(frozen=True)
class Received:
    """A reply that passed every check that can be made of it alone."""

    site: str
    reply: Reply
    free: Signature  # the tensors whose shape the shared state does not give away


class Gate:
    """What the replies to one exchange must look like."""

    def __init__(self, algorithm: Algorithm, step: str, shared: Tensors, tag: Tag):
        self._algorithm, self._shared, self._tag = algorithm, shared, tag
        self.step = INIT if step == INIT.name else require_step(algorithm, step)
        self._when = f"{f'round {tag.turn - 1}' if tag.turn else 'start'}, step {step}"
        self._counts = dict(zip(algorithm.task.names, algorithm.task.counts, strict=True))

    def read(self, site: str, content: RecordDict) -> Received:
        """A reply of the node that `site` runs, or `Refused`."""
        try:
            return self._read(site, content)
        except Refused as error:
            raise Refused(f"site {site!r}, {self._when}: {error}") from error
        except Exception as error:  # bytes from elsewhere: nothing they hold may stop the training
            raise Refused(f"site {site!r}, {self._when}: the reply cannot be read: {error!r}") from error

    def _read(self, site: str, content: RecordDict) -> Received:
        header = header_of(content)
        kind = header.get("kind")
        if header.get("tag") != str(self._tag):
            raise Refused(f"the reply belongs to exchange {header.get('tag')!r}, not to {self._tag}")
        if header.get("site") not in self._counts:
            raise Refused(f"it answers as {header.get('site')!r}, which is not one of the sites of this run")
        if header["site"] != site:
            raise Refused(f"it answers as {header['site']!r}")
        if kind == "refusal":
            raise Refused(str(header.get("why", "it refused without a reason"))[:500])
        if kind not in KINDS.values():
            raise Refused(f"{kind!r} is not a kind of reply")
        if (due := KINDS[self.step.reply]) != kind:
            raise Refused(f"its reply is of the kind {kind!r}, not {due!r}")
        rows = header.get("rows")
        if type(rows) is not int or rows != self._counts[site]:
            raise Refused(f"it now has {rows!r} rows, {self._counts[site]} when it joined")
        tensors = self._finite(content, REPLY)
        row = self._finite(content, ROW) if kind == "both" else tensors if kind == "rows" else {}
        averaged = {} if kind == "rows" else tensors
        if twice := row.keys() & averaged.keys():
            raise Refused(f"{min(twice)!r} comes twice")
        free = self._check_against_shared(averaged, row)
        task = self._algorithm.task
        sender = Sender(self._counts[site], values_per_row(task.shape), task.clients, task.schema is not None)
        weight = None if kind == "rows" else require_weight(header.get("weight"), sender.rows)
        check_kinds(self.step, averaged, row, weight, sender)
        if weight is None:
            return Received(site, PerClient.of(site, **row), free)
        mean = Mean(weight, **averaged)
        reply = Combined(mean, PerClient.of(site, **row)) if kind == "both" else mean
        require_declared_reply(self._algorithm, self.step, site, self._shared, reply)
        return Received(site, decode(self._algorithm.transforms, self.step, self._shared, reply), free)

    def _finite(self, content: RecordDict, record: str) -> Tensors:
        tensors = tensors_of(content, record)
        for name in tensors:
            if self.step.upload(name) is None:
                raise Refused(f"{name!r} is not declared to leave a client in step {self.step.name}")
        require_finite(tensors)
        return tensors

    def _check_against_shared(self, averaged: Tensors, row: Tensors) -> Signature:
        """A tensor named as a shared one has its type and shape (shares: those of one client's row), and none is
        missing."""
        free = set()
        half = self._algorithm.settings.wire.precision == "half"
        changes = updates(self.step, averaged) if half else {}
        for name, value in (averaged | row).items():
            known = self._shared.get(name)
            if known is None:
                free.add((name, tuple(value.shape), value.dtype))
                continue
            shape = known.shape[1:] if isinstance(self.step.upload(name), Shares) else known.shape
            kind = torch.float16 if name in changes else known.dtype
            if value.shape != shape or value.dtype != kind:
                found, expected = (
                    f"{dtype} of shape {tuple(size)}" for dtype, size in ((value.dtype, value.shape), (kind, shape))
                )
                raise Refused(f"{name!r} is {found}, not {expected}")
        if not self.step.partial:
            for name in self._shared.keys() - self._algorithm.frozen_names:
                if self.step.upload(name) and name not in averaged | row:
                    raise Refused(f"{name!r} is missing")
        return frozenset(free)


def outvoted(received: Sequence[Received]) -> dict[str, str]:
    """Sites whose reply differs in kind, names, types or shapes from what most sites sent, and in what."""
    signatures = {each.site: (type(each.reply).__name__, each.free) for each in received}
    if len(set(signatures.values())) < 2:
        return {}
    (usual, _), *_ = Counter(signatures.values()).most_common(1)
    return {
        site: f"it sent {_described(*signature)} where most sites sent {_described(*usual)}"
        for site, signature in signatures.items()
        if signature != usual
    }


def _described(kind: str, free: Signature) -> str:
    parts = [f"{name} {str(dtype).removeprefix('torch.')}{list(shape)}" for name, shape, dtype in sorted(free, key=str)]
    return f"{kind}({', '.join(parts)})"


def nbytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
