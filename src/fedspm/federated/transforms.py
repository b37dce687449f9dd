"""How a reply leaves a client and arrives at the server: clipped, noised, in 16 bits. The same on every engine.

With any of these an update travels as its change Δ_i = φ_i − φ, φ being the parameters that the server sent:

    Δ_i ← Δ_i · min(1, S / ‖Δ_i‖) + N(0, z² S² I)
    τ_i ← τ_i + N(0, z² n_i² / 2 · I), then floored and scaled back to Σ_c τ_ic = n_i

Whatever the rows of a client, two of its Δ lie at most 2 S apart and two of its τ at most √2 n_i: either way the noise
is z/2 times the distance, which is what `federated.accountant` accounts for. An update in `PerClient`, in whole
numbers, or in a `Mean` beside something that has no counterpart in φ, would escape both and is refused. Everything else
leaves as it is.
"""

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch

from fedspm.base.errors import TrainingFailed
from fedspm.base.randomness import secret_generator
from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.replies import Combined, Mean, PerClient, Reply
from fedspm.federated.settings import Settings

MARGIN = 1 - 1e-6  # rounding to single precision does not lift a clipped change above S
EMPTY = torch.empty(0)
FLOOR = 1e-3  # of n_i: no τ_ic falls below, its logarithm is needed


@dataclass(frozen=True)
class ReplyTransform:
    """A client's step, whose reply is about to leave. The noise follows from `secret`, who, when and what."""

    settings: Settings
    client: Client
    step: str
    shared: Tensors  # what the server sent
    secret: str = ""

    def __call__(self, reply: Reply) -> Reply:
        if isinstance(reply, Combined):
            return Combined(self._mean(reply.mean), self._rows(reply.rows))
        return self._rows(reply) if isinstance(reply, PerClient) else self._mean(reply)

    def noised(self, reply: Reply) -> int:
        """How many vectors of the reply get noise here: Δ and τ are a Gaussian mechanism each."""
        if isinstance(reply, Combined):
            return self.noised(reply.mean) + self.noised(reply.rows)
        if not self.settings.privacy.noise:
            return 0
        if isinstance(reply, PerClient):
            return int("tau" in reply.rows[self.client.name] and self.settings.components > 1)  # one: τ_i = n_i
        return int(as_changes(self.settings, self.shared, sent(reply)[1]))

    def _rows(self, reply: PerClient) -> PerClient:
        row, n = reply.rows[self.client.name], self.client.n
        if self.settings.privacy.clip is not None:
            self._require_no_update(row.keys() - {"tau"}, "PerClient")
        if self.settings.privacy.noise and self.settings.components == 1 and row.get("tau", EMPTY).numel() > 1:
            raise TrainingFailed(
                "'tau' has several entries in a run with one component, where it is n_i and gets no noise"
            )
        if not self.noised(reply):
            return reply
        tau = row["tau"]
        noised = tau.double() + n / math.sqrt(2) * self._noise({"tau": tau})["tau"]
        floored = noised.clamp_min(FLOOR * n)
        return PerClient.of(self.client.name, **(row | {"tau": (floored * (n / floored.sum())).to(tau.dtype)}))

    def _require_no_update(self, leaving: Collection[str], kind: str) -> None:
        """What is not clipped may hold nothing that `fedspm.federated.accountant` takes for noised."""
        noised = {name.split(".")[0] for name in self.shared} | {"tau"}
        for name in leaving:
            if name.split(".")[0] in noised:
                raise TrainingFailed(
                    f"{name!r} leaves in {kind} that privacy.clip neither clips nor noises; reply with a Mean of "
                    "shared parameters only, or train without privacy.clip"
                )

    def _mean(self, reply: Mean) -> Mean:
        weight, tensors = sent(reply)
        if not as_changes(self.settings, self.shared, tensors):
            if self.settings.privacy.clip is not None:
                self._require_no_update(tensors.keys(), "a Mean")
            return reply
        moved = {name: value.cpu().double() for name, value in tensors.items() if value.is_floating_point()}
        change = {name: value - self.shared[name].cpu().double() for name, value in moved.items()}
        privacy, half = self.settings.privacy, self.settings.wire.precision == "half"
        if privacy.clip is not None:
            self._require_no_update(tensors.keys() - moved.keys(), "whole numbers")
            change = clipped(change, privacy.clip)
            if self.noised(reply):
                noise = self._noise(change)
                change = {name: value + privacy.clip * noise[name] for name, value in change.items()}
        leaves = {name: value.half() if half else value.float() for name, value in change.items()}
        if not all(value.isfinite().all() for value in leaves.values()):
            raise TrainingFailed(
                "an update does not fit into 16 bits; lower the learning rate or set wire.precision = full"
            )
        return Mean(weight, **(tensors | leaves))

    def _noise(self, clean: Tensors) -> Tensors:
        """N(0, z² I), another stream for every other content, z and S: no two replies share their noise."""
        privacy = self.settings.privacy
        content = hashlib.sha256(f"{privacy.noise!r} {privacy.clip!r}".encode())
        for name in sorted(clean):
            content.update(name.encode() + clean[name].contiguous().numpy().tobytes())
        who = (self.client.seed, self.client.name, self.client.round, self.step)
        stream = secret_generator(self.secret, *who, content.hexdigest())
        return {
            name: torch.from_numpy(np.asarray(privacy.noise * stream.standard_normal(clean[name].shape)))
            for name in sorted(clean)
        }


def arrived(settings: Settings, shared: Tensors, reply: Reply) -> Reply:
    """The reply as the algorithm means it: changes become parameters again."""
    if isinstance(reply, Combined):
        return Combined(_restored(settings, shared, reply.mean), reply.rows)
    return reply if isinstance(reply, PerClient) else _restored(settings, shared, reply)


def _restored(settings: Settings, shared: Tensors, reply: Mean) -> Mean:
    weight, tensors = sent(reply)
    if not as_changes(settings, shared, tensors):
        return reply
    was = {name: shared[name].cpu() for name, value in tensors.items() if value.is_floating_point()}
    restored = Mean(weight, **(tensors | {name: value + tensors[name].to(value.dtype) for name, value in was.items()}))
    restored.nbytes = reply.nbytes  # of what was sent
    return restored


def sent(reply: Mean) -> tuple[float, Tensors]:
    assert reply.sent is not None, "a reply that was merged already"
    return reply.sent


def as_changes(settings: Settings, shared: Tensors, tensors: Tensors) -> bool:
    """Does this update travel as a change? Sums do not: they have no counterpart in the shared state."""
    wanted = settings.privacy.clip is not None or settings.wire.precision == "half"
    return wanted and bool(tensors) and tensors.keys() <= shared.keys()


def clipped(change: Tensors, clip: float) -> Tensors:
    """All tensors together scaled to a norm of at most `clip`."""
    norm = sum(float(value.square().sum()) for value in change.values()) ** 0.5
    factor = min(1.0, clip * MARGIN / norm) if norm else 1.0
    return {name: value * factor for name, value in change.items()}
