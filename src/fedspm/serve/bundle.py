"""A bundle: one folder with what a router needs of a run, and one folder per client with what its node needs.

    BUNDLE/router/         router.json, router.safetensors, router.sig if it is signed
    BUNDLE/clients/NAME/   node.json, node.safetensors, node.sig if it is signed

The router has no head, a node has nothing of the other clients, and neither has a row of anybody's data. All folders of
one export carry the same `version`, and the router asks a node for the version that it routed with. A card holds the
hash of its tensors, so that a folder which is half copied is never used.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import safetensors.numpy
import safetensors.torch
import torch
from jaxtyping import Float
from pydantic import Field, ValidationError
from safetensors.torch import load
from torch import Tensor

from fedspm.algorithms import build_algorithm, outside_code
from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.base.files import parse_json
from fedspm.base.plugins import require_allowed
from fedspm.base.schema import Strict, problem
from fedspm.base.tensors import Tensors, plain, read_tensors
from fedspm.data.arrays import as_input
from fedspm.data.tables.schema import TableSchema
from fedspm.federated.serving import Servable
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.serve.novelty import Novelty
from fedspm.serve.routing_result import RoutingResult

KINDS, SUFFIXES = ("router", "node"), ("json", "safetensors", "sig")  # of a folder, and of its files
FORMAT = 3  # since bundles hold how tables become vectors
TENSORS = "application/x-safetensors"  # content type of packed tensors
HEADER = 64 * 1024  # bytes that the header of a body may have: hundreds of tensors, and a query has one
SUM = 1e-3  # by which probabilities of a probe may miss one


class Card(Strict):
    """The JSON file of a folder: everything but the tensors."""

    format: int
    version: str
    sha256: str  # of the safetensors file beside it
    made_from: str  # fingerprint of the data
    round: int
    settings: Settings
    shape: tuple[int, ...]
    range: tuple[float, float] | None  # of the training rows; None: not known, but beyond that of image files
    classes: list[str | int | float | bool]
    table: TableSchema | None = Field(None, description="how rows of named columns become vectors")
    names: list[str]  # all clients for a router, one for a node
    counts: list[int]
    features: dict[str, list[int]] = Field({}, description="a node's: shapes of what the router sees in a row")
    folders: list[str] = Field([], description="a router's: the folder of every client in BUNDLE/clients")
    false_alarms: float | None = Field(None, description="a router's: share of known rows that are called novel")
    meanings: dict[str, list[list[int] | None]] | None = Field(
        None,
        description="a router's, where label names are permuted by construction: the class that each name stands for, "
        "by client and component, where that is known",
    )

    @property
    def task(self) -> Task:
        return Task(self.shape, len(self.classes), tuple(self.names), tuple(self.counts), self.table)

    @property
    def columns(self) -> list[str] | None:
        """Names of the columns of a row, where they have any."""
        return list(self.table.names) if self.table else None

    def require_consistent(self) -> None:
        """Refuse a card whose parts contradict each other: what a query needs of it would be missing then."""
        clients, labels, each = len(self.names), list(range(len(self.classes))), self.settings.components
        meanings = [(len(told), [sorted(names or labels) for names in told]) for told in (self.meanings or {}).values()]
        for fits, what in (
            (len(set(self.names)) == clients > 0, "names"),
            (len(self.counts) == clients and min(self.counts) > 0, "counts"),
            (len(set(map(str, self.classes))) == len(labels), "classes"),
            (len(self.folders) in (0, clients), "folders"),
            (not self.table or (len(self.table.features),) == self.shape, "table"),
            (all(told == (each, [labels] * each) for told in meanings), "meanings"),
        ):
            if not fits:
                raise FedSPMError(f"its card contradicts itself at {what}")


@dataclass(frozen=True)
class ServedModel(ABC):
    """One folder of a bundle, loaded."""

    kind: ClassVar[str]  # of the folder

    card: Card
    tensors: Tensors

    @cached_property
    def algorithm(self) -> Servable:
        algorithm = build_algorithm(self.card.settings, self.card.task)
        if not isinstance(algorithm, Servable):
            raise FedSPMError(f"{self.card.settings.algorithm} cannot be served")
        return algorithm

    def require_answers(self) -> None:
        """Refuse a model that does not answer the mean of all rows with finite probabilities of the right shape."""
        with self._in_a_sentence():
            self.card.require_consistent()
        _ = self.algorithm  # an encoder that cannot be built says so itself
        with self._in_a_sentence():
            self._require_probabilities()

    @contextmanager
    def _in_a_sentence(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever tensors that do not fit make PyTorch raise
            kind = "" if isinstance(error, FedSPMError) else f"{type(error).__name__}: "
            said = kind + (str(error).splitlines() or [""])[0]
            raise FedSPMError(f"version {self.card.version} does not answer a probe: {said}; export it anew") from error

    def _require_probabilities(self) -> None:
        for what, found, shape in self._probe():
            if found.shape != shape:
                raise FedSPMError(f"{what} has shape {tuple(found.shape)}, not {shape}")
            if not torch.isfinite(found).all():
                raise FedSPMError(f"{what} is not finite")
            if not torch.allclose(found.sum(-1), torch.ones(()), atol=SUM):
                raise FedSPMError(f"{what} does not sum to one")
        for name, value in self.tensors.items():  # also where the mean row did not lead
            if not torch.isfinite(value).all():
                raise FedSPMError(f"{name} is not finite")

    @abstractmethod
    def _probe(self) -> list[tuple[str, Tensor, tuple[int, ...]]]:
        """What is answered, under its name, and the shape that it must have."""


class RouterModel(ServedModel):
    kind = "router"

    def _probe(self) -> list[tuple[str, Tensor, tuple[int, ...]]]:
        result, clients = self.route(mean_row(self.tensors, self.card.shape)), len(self.card.names)
        return [
            ("P(client | x)", result.posterior, (1, clients)),
            ("P(component | x)", result.components, (1, clients, self.card.settings.components)),
        ]

    @cached_property
    def novelty(self) -> Novelty | None:
        return Novelty.out_of(self.tensors)

    @torch.no_grad()
    def route(self, x: Float[Tensor, "n *shape"]) -> RoutingResult:
        """Whom the rows resemble (eq. 10), in which component, and whether they resemble anybody."""
        x = self.algorithm.standardise(self.tensors, x)
        features = self.algorithm.routing_view(self.tensors, x)
        scores = self.algorithm.log_scores(self.tensors, features)
        assert scores is not None
        components = self.algorithm.log_components(self.tensors, features).exp()
        novelty = None
        if self.novelty:
            novelty = self.novelty.share_below(x, features)
        return RoutingResult(features, torch.softmax(scores, dim=1), components, novelty)


class NodeModel(ServedModel):
    kind = "node"

    def _probe(self) -> list[tuple[str, Tensor, tuple[int, ...]]]:
        features = {name: torch.zeros(1, *shape) for name, shape in self.card.features.items()}
        answer = self.answer(mean_row(self.tensors, self.card.shape), features)
        return [("P(class | x)", answer, (1, len(self.card.classes)))]

    @torch.no_grad()
    def answer(self, x: Float[Tensor, "n *shape"], features: Tensors) -> Float[Tensor, "n k"]:
        """Class probabilities of this client (eq. 11), from the rows and what the router saw in them."""
        x = self.algorithm.standardise(self.tensors, x)
        embedding = features | self.algorithm.predicting_view(self.tensors, x)
        return self.algorithm.local_probabilities(0, self.tensors, self.tensors, embedding)


def mean_row(tensors: Tensors, shape: tuple[int, ...]) -> Float[Tensor, "1 *shape"]:
    """The mean of everybody's rows, which standardised is zero: the row that a model should know best."""
    mean = tensors["input.mean"].view(-1, *[1] * (len(shape) - 1))
    return as_input(mean.expand(shape)[None], shape)


def load_router(folder: Path, allowed: Collection[str] = (), trust: bytes | None = None) -> RouterModel:
    """Code from outside this package is imported only if `allowed` has the name that the folder calls it by. With a key
    to `trust`, the folder must be signed with it."""
    return RouterModel(*_load(folder, "router", allowed, trust))


def load_node(folder: Path, allowed: Collection[str] = (), trust: bytes | None = None) -> NodeModel:
    """As `load_router`, for the folder of one client."""
    return NodeModel(*_load(folder, "node", allowed, trust))


def read_card(folder: Path, kind: str, trust: bytes | None = None) -> Card:
    path = folder / f"{kind}.json"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FedSPMError(
            f"{folder} is not the folder of a {kind}: it has no {kind}.json; make a bundle with `fedspm export`"
        ) from error
    if trust:
        from fedspm.serve.signature import require_signed

        require_signed(folder, kind, content, trust)
    try:
        card = Card.model_validate(parse_json(content, path))
    except ValidationError as error:
        raise DamagedFile(f"{path} is damaged at {problem(error, Card)}") from error
    if card.format != FORMAT:
        raise FedSPMError(f"{folder} has format {card.format}, this version of fedspm reads {FORMAT}; export it anew")
    return card


def _load(folder: Path, kind: str, allowed: Collection[str], trust: bytes | None) -> tuple[Card, Tensors]:
    card, path = read_card(folder, kind, trust), folder / f"{kind}.safetensors"
    require_allowed(outside_code(card.settings), allowed)
    unlike = f"is damaged, or not of the same export as {kind}.json (its SHA-256 is another); copy both files again"
    return card, read_tensors(path, card.sha256, other_digest=unlike).tensors


def version_of(parts: list[Tensors]) -> str:
    """The version of an export: 16 digits of a hash of all its tensors."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(pack(part))
    return digest.hexdigest()[:16]


# -- tensors as bytes: in files, and between router and node -----------------------------------------------------------


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as safetensors bytes. For a few rows NumPy takes a third of the time, but it does not know bfloat16."""
    kept = dict(sorted(plain(tensors).items()))
    if any(tensor.dtype is torch.bfloat16 for tensor in kept.values()):
        return bytes(safetensors.torch.save(kept))
    return bytes(safetensors.numpy.save({name: tensor.numpy() for name, tensor in kept.items()}))


def packed_rows(x: Float[Tensor, "n *shape"], features: Tensors) -> bytes:
    """Rows and features as a node gets them. Images are channels last in memory, and are sent in that order."""
    return pack(features | ({"images": x.permute(0, 2, 3, 1)} if x.ndim == 4 else {"x": x}))


def unpacked_rows(content: bytes) -> tuple[Tensor, Tensors]:
    """The rows and the router's features that `packed_rows` packed."""
    tensors = unpack(content)
    if "images" in tensors and tensors["images"].ndim == 4:
        return tensors.pop("images").permute(0, 3, 1, 2), tensors
    if "x" not in tensors:
        raise FedSPMError("the body has neither images nor a tensor named x")
    return tensors.pop("x"), tensors


def unpack(content: bytes, header: int = HEADER) -> dict[str, Any]:
    """The tensors of a body whose header has at most so many bytes: one that declares more is refused unread, because
    building 300,000 empty tensors takes seconds."""
    if (declared := int.from_bytes(content[:8], "little")) > header:
        raise FedSPMError(f"the header of the tensors has {declared} bytes, more than the {header} that rows need")
    try:
        tensors: dict[str, Any] = load(content)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FedSPMError(f"the body is not a safetensors file: {error}") from error
    return tensors
