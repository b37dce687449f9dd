"""The contract: an algorithm is server logic that talks through `exchange`, and client steps that return replies."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.base.randomness import torch_generator
from fedspm.base.schema import Strict
from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Mean, PerClient
from fedspm.federated.settings import EM, FASTEST, OF_IMAGES, PULL, Block, Predictor, Router, Settings
from fedspm.federated.standardising import feature_sums, mean_and_scale, standardised
from fedspm.federated.steps import Step, step, steps_of
from fedspm.federated.task import Task, public_input
from fedspm.federated.transforms import transforms_of
from fedspm.federated.uploads import DESCRIPTION, EVALUATION
from fedspm.nn.build_encoder import build_encoder
from fedspm.nn.encoder import Encoder
from fedspm.nn.sgd import Batch, chunks

INPUT = ("input.mean", "input.scale")  # how rows are standardised


def without_noise(algorithm: "Algorithm") -> bool:
    """Unless `privacy.noise` is set."""
    return not algorithm.settings.privacy.noise


def prepares_for_evaluation(algorithm: "Algorithm") -> bool:
    """If the method defines it, or `privacy.noise` is set."""
    return algorithm.personalises() or not without_noise(algorithm)


class Algorithm(ABC):
    """One method. `shared` and `private` are flat dicts of tensors; a step returns new ones and changes none."""

    class Options(Strict):
        """What only this algorithm knows: `options.NAME` in a configuration."""

    routes: ClassVar[bool] = False
    variants: ClassVar[bool] = False  # 1× and C×: `variant` in a configuration matters
    has_components: ClassVar[bool] = False  # finds components inside clients, which can be compared with the truth
    em: ClassVar[frozenset[str]] = frozenset(EM.model_fields)  # what of `[em]` in a configuration matters
    steps: ClassVar[Mapping[str, Step]] = {}
    """The client steps, as `@step` declares them; filled in for every class."""

    server_only: ClassVar[frozenset[str]] = frozenset()
    """What the server keeps for itself of the state that `start` and `server_round` return, by the first part of its
    names: it is in checkpoints, and no client is ever sent it."""

    bookkeeping: ClassVar[frozenset[str]] = frozenset({"input"})
    """Tensors that are not learnt: statistics, and what a client notes of its rows. By name, or by the first part."""

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        cls.steps = steps_of(cls)

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        self.settings = settings
        self.task = task
        self.options = settings.checked_options(self.Options)
        self.schedule = settings.schedule  # rounds of annealing
        self.transforms = transforms_of(settings)
        self.encoders: list[Encoder] = []
        self._networks = networks or {}

    def encoder(self, role: Literal["predictor", "router"], copies: int) -> Encoder:
        """The encoder of a role: the network that was given for it, or the one that the settings name."""
        block: Block = getattr(self.settings, role)
        source = self._networks.get(role, block.encoder)
        resnet = self.settings.predictor
        encoder = build_encoder(
            role,
            source,
            self.task.shape,
            block.dimension,
            copies,
            self.settings.seed,
            normalise=resnet.normalisation,
            grid=resnet.grid,
        )
        if set(encoder.buffers) - set(encoder.frozen) and self.settings.privacy.clip is not None:
            raise FedSPMError(
                f"privacy.clip: the {role} has running statistics, which cannot be clipped; "
                'set predictor.normalisation = "group"'
            )
        self.encoders.append(encoder)
        return encoder

    def shapes(self) -> dict[str, torch.Size]:
        """Of what the shared state must have, by name."""
        return {name: value.shape for encoder in self.encoders for name, value in encoder.initial().items()}

    def require_fit(self, shared: Tensors) -> None:
        """Refuse a shared state that belongs to other encoders, components or clients."""
        for name, shape in self.shapes().items():
            if name not in shared or shared[name].shape != shape:
                found = f"has shape {tuple(shared[name].shape)}" if name in shared else "is missing"
                raise DamagedFile(
                    f"the checkpoint does not fit its configuration: {name} {found}, expected {tuple(shape)}"
                )

    @cached_property
    def frozen_names(self) -> frozenset[str]:
        """Of what no round changes: parameters that a network came with frozen, and their running statistics."""
        return frozenset(name for encoder in self.encoders for name in encoder.frozen)

    def kinds(self, state: Tensors) -> dict[str, frozenset[str]]:
        """Names in the server's state of what only the server has, and of what no round changes."""
        server = frozenset(name for name in state if name.split(".")[0] in self.server_only)
        return {"server": server, "frozen": self.frozen_names.intersection(state)}

    def sent(self, state: Tensors) -> Tensors:
        """What clients are sent of the server's state: all but what is `server_only`."""
        return {name: value for name, value in state.items() if name.split(".")[0] not in self.server_only}

    # -- server ------------------------------------------------------------------------------------------------------

    def start(self, exchange: Exchange) -> Tensors:
        """The shared state before round 0. Algorithms add their parameters to the standardising statistics."""
        if not without_noise(self):
            return dict(zip(INPUT, public_input(self.task, self.settings.privacy), strict=True))
        totals = exchange(self.describe, {}).totals()
        if not totals["count"].any():
            warnings.warn("no client has as many rows as min_count: x is not standardised", stacklevel=2)
        mean, scale = mean_and_scale(**totals)
        return {"input.mean": mean.float(), "input.scale": scale.float()}

    def steps_in_use(self) -> dict[str, Step]:
        """The steps that a run with these settings asks for: a site answers no others. With noise nothing leaves in
        full after training: ε would not cover it."""
        left_out = None if without_noise(self) else "after training"
        used = {name: step for name, step in self.steps.items() if step.used(self)}
        return {name: step for name, step in used.items() if not (step.exact and step.when == left_out)}

    @abstractmethod
    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        """One round of training: the new state of the server, most of which is shared with the clients."""

    def prepared(self, shared: Tensors, exchange: Exchange) -> Tensors:
        """The state as it is evaluated, saved and served. Training goes on as if nothing had been prepared."""
        if self.personalises():
            exchange(self.personalise, shared)
        return shared

    def participants(self, round: int) -> list[int]:
        """The clients of a round, in order: all, or `clients_per_round` of them, each as likely as the others."""
        clients, drawn = self.task.clients, self.settings.clients_per_round
        if drawn is None or drawn >= clients:
            return list(range(clients))
        order = torch.randperm(clients, generator=torch_generator(self.settings.seed, "participants", round))
        return sorted(order[:drawn].tolist())

    def learning_rate(self, role: str) -> float:
        """η of the first round. `auto` for vectors: a row pulls equally much in all rounds together, however many
        rounds and rows there are. A short training then learns enough, and small clients are not overfitted."""
        block: Predictor | Router = getattr(self.settings, role)
        if block.learning_rate != "auto":
            return block.learning_rate
        if len(self.task.shape) > 1:
            return OF_IMAGES
        rows = sum(self.task.counts) / len(self.task.counts)
        visits = self.schedule * block.steps * min(block.batch_size, rows) / rows  # of a row, in all rounds
        return PULL / max(visits, PULL / FASTEST)

    def round_rate(self, role: str, round: int) -> float:
        """η_t = η ½ (1 + cos(π t / T)), T the horizon."""
        return self.learning_rate(role) * 0.5 * (1 + math.cos(math.pi * min(round / self.schedule, 1)))

    # -- client ------------------------------------------------------------------------------------------------------

    def init_private(self, client: Client) -> Tensors:
        """The private state of a client before its first step."""
        return {}

    @step(when="start", used=without_noise, uploads=DESCRIPTION)
    def describe(self, client: Client, shared: Tensors) -> tuple[Mean, Tensors]:
        """Count, sum and sum of squares of every channel or feature, each from at least `min_count` known values; of
        what is 0 or 1 by construction, none where fewer rows are 1, or fewer are 0, but some."""
        flags = self.task.schema.flags if self.task.schema else ()
        return Mean(1, **feature_sums(client.x, self.settings.min_count, flags)), client.private

    def local_solver(
        self,
        client: Client,
        step: str,
        encoder: Encoder,
        parameters: Tensors,
        objective: Callable[[Tensors, Batch], Tensor],
        scale: Mapping[str, Tensor] | None = None,
        *,
        learning_rate: float | None = None,
        momentum: float | None = None,
        constants: Tensors | None = None,
        **extra: Tensor,
    ) -> Tensors:
        """The paper's LocalSolver: a round's SGD steps of one block, at the rate of this round or another.

        `objective` answers a loss for every row. What differs between clients reaches it in the batch: `batch.client`,
        by name in `batch.extra` what is given here as `extra`, one entry per row, and in `batch.constants` what is
        the same for all rows of a client.
        """
        block: Block = getattr(self.settings, encoder.role)
        rate = self.round_rate(encoder.role, client.round) if learning_rate is None else learning_rate
        return client.descend(
            step,
            parameters,
            client.weighted(objective, encoder.role),
            client.batches(step, block.batch_size, block.steps, constants, **extra),
            learning_rate=rate,
            momentum=block.momentum if momentum is None else momentum,
            fixed=encoder.fixed,
            scale=scale,
        )

    def standardise(self, shared: Tensors, x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n *shape"]:
        """(x − mean) / scale in one pass; what is missing counts as the mean"""
        return standardised(x, shared["input.mean"], shared["input.scale"], self.task.schema is not None)

    @step(when="evaluation", uploads={}, used=prepares_for_evaluation)
    def personalise(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """What a client does on its own before it is evaluated; nothing of it leaves. By default nothing."""
        return PerClient.of(client.name), client.private

    @step(when="evaluation", rows="test", used=without_noise, uploads=EVALUATION)
    @torch.no_grad()
    def evaluate(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """What a client tells of its own test rows, if it has at least `min_count`: how many, how many it labels right
        itself, and where they are routed. In process the whole system is evaluated instead."""
        shown = client.n if client.n >= self.settings.min_count else 0
        right, routed = 0, torch.zeros(self.task.clients, dtype=torch.long)
        for x, y in zip(chunks(client.x[:shown]), chunks(client.y[:shown]), strict=True):
            if len(y):
                embedding = self.embed(shared, x)
                probabilities = self.local_probabilities(client.index, client.private, shared, embedding)
                right += int((probabilities.argmax(1) == y).sum())
                if (scores := self.log_scores(shared, embedding)) is not None:
                    routed += torch.bincount(scores.argmax(1).cpu(), minlength=len(routed))
        told = {"rows": torch.tensor(shown), "right": torch.tensor(right), "routed": routed}
        return PerClient.of(client.name, **told), client.private

    @classmethod
    def personalises(cls) -> bool:
        return cls.personalise is not Algorithm.personalise

    def components_of(self, private: Tensors) -> Int[Tensor, " n"] | None:
        """The hidden component of each training row of a client; None if none were found."""
        return None

    def mixing_of(self, private: Tensors) -> Float[Tensor, " c"] | None:
        """How a client mixes hidden components; None if none were found."""
        return None

    def notes_of(self, private: Tensors) -> dict[str, float]:
        """Figures that a client notes of itself; in process the metrics have the largest of all clients."""
        return {}

    # -- inference ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def embed(self, shared: Tensors, x: Float[Tensor, "n *shape"]) -> Tensors:
        """Whatever the shared encoders say of the rows, computed once for all clients."""

    def log_scores(self, shared: Tensors, embedding: Tensors) -> Float[Tensor, "n m"] | None:
        """How well each client matches each row, in log space; None if the method cannot route."""
        return None

    @abstractmethod
    def local_probabilities(
        self, client: int, private: Tensors, shared: Tensors, embedding: Tensors
    ) -> Float[Tensor, "n k"]:
        """Class probabilities that one client gives."""
