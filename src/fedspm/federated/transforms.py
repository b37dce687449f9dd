"""What happens to a reply on its way out of a client: clipped, noised, in 16 bits. The same on every engine.

With any transform an update travels as its change Δ_i = φ_i − φ, φ being the parameters that the server sent:

    Clip    Δ_i ← Δ_i · min(1, S / ‖Δ_i‖)
    Noise   Δ_i ← Δ_i + N(0, z² S² I)
            τ_i ← τ_i + N(0, z² n_i² / 2 · I), then floored and scaled back to Σ_c τ_ic = n_i
    Half    Δ_i in 16 bits

Whatever the rows of a client, two of its clipped Δ lie at most 2 S apart and two of its τ at most √2 n_i: the noise is
either way z/2 times the distance, which is what `federated.accountant` accounts for. It is counted where it is drawn.

Another package can add a transform (entry point `fedspm.transforms`, named in `wire.transforms`): any function of a
change and of `Leaving` that answers a change of the same names and shapes. It runs after the noise, on what is public.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspm.base.errors import FedSPMError, TrainingFailed
from fedspm.base.plugins import plugin, plugin_names
from fedspm.base.randomness import secret_normal
from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.replies import Combined, Mean, PerClient, Reply
from fedspm.federated.settings import Settings
from fedspm.federated.steps import Step
from fedspm.federated.uploads import Copy, Shares, Update

MARGIN = 1 - 1e-6  # rounding to single precision does not lift a clipped change above S
GRID = 256  # points of the grid to a standard deviation of the noise
FLOOR = 1e-3  # of n_i: no τ_ic falls below, its logarithm is needed


@dataclass(frozen=True)
class Leaving:
    """Whose reply is about to leave, and of which step."""

    settings: Settings
    client: Client
    step: str
    secret: str = ""  # of the client; its noise follows from it

    def noise(self, clean: Tensors) -> Tensors:
        """N(0, z² I), another stream for every other content, z and S: no two replies share their noise."""
        privacy = self.settings.privacy
        content = hashlib.sha256(f"{privacy.noise!r} {privacy.clip!r}".encode())
        for name in sorted(clean):
            content.update(name.encode() + clean[name].contiguous().numpy().tobytes())
        who = (self.client.seed, self.client.name, self.client.round, self.step)
        sizes = {name: clean[name].numel() for name in sorted(clean)}
        draws = torch.from_numpy(secret_normal(sum(sizes.values()), self.secret, *who, content.hexdigest()))
        parts = zip(sizes, draws.split(list(sizes.values())), strict=True)
        return {name: privacy.noise * part.view(clean[name].shape) for name, part in parts}

    def on_grid(self, value: Tensor, unit: float) -> Tensor:
        """A noised value rounded to a grid of z/256 units, whatever the value: the last bits of a sum of doubles, which
        tell of what was added (Mironov 2012), do not leave."""
        step = unit * self.settings.privacy.noise / GRID
        return (value / step).round() * step


Transform = Callable[[Tensors, Leaving], Tensors]  # a change in double precision → a change


def clip(change: Tensors, leaving: Leaving) -> Tensors:
    """All tensors together scaled to a norm of at most `privacy.clip`."""
    assert leaving.settings.privacy.clip is not None
    return clipped(change, leaving.settings.privacy.clip)


def clipped(change: Tensors, longest: float) -> Tensors:
    norm = sum(float(value.square().sum()) for value in change.values()) ** 0.5
    factor = min(1.0, longest * MARGIN / norm) if norm else 1.0
    return {name: value * factor for name, value in change.items()}


def add_noise(change: Tensors, leaving: Leaving) -> Tensors:
    """Gaussian noise in units of the clip."""
    longest, noise = leaving.settings.privacy.clip, leaving.noise(change)
    assert longest is not None
    return {name: leaving.on_grid(value + longest * noise[name], longest) for name, value in change.items()}


def to_half(change: Tensors, leaving: Leaving) -> Tensors:
    return {name: value.half() for name, value in change.items()}


def transforms_of(settings: Settings) -> tuple[Transform, ...]:
    """What the settings of a run do to updates, in order."""
    found: list[Transform] = []
    if settings.privacy.clip is not None:
        found.append(clip)
    if settings.privacy.noise:
        found.append(add_noise)
    found += [_of_plugin(name) for name in settings.wire.transforms]
    if settings.wire.precision == "half":
        found.append(to_half)
    return tuple(found)


def _of_plugin(name: str) -> Transform:
    found: Transform | None = plugin("transforms", name)
    if found is None:
        known = ", ".join(plugin_names("transforms")) or "none are installed"
        raise FedSPMError(f"wire.transforms: there is no transform {name!r}; known are: {known}")
    return found


# -- at the client ---------------------------------------------------------------------------------------------------


def encode(
    transforms: Sequence[Transform],
    settings: Settings,
    step: Step,
    client: Client,
    shared: Tensors,
    reply: Reply,
    secret: str = "",
) -> tuple[Reply, int]:
    """The reply as it leaves, and how many of its vectors got noise: Δ and τ are a Gaussian mechanism each."""
    leaving = Leaving(settings, client, step.name, secret)
    if isinstance(reply, Combined):
        mean, of_mean = _encoded_mean(transforms, leaving, step, shared, reply.mean)
        rows, of_rows = _encoded_rows(leaving, step, reply.rows)
        return Combined(mean, rows), of_mean + of_rows
    if isinstance(reply, PerClient):
        return _encoded_rows(leaving, step, reply)
    return _encoded_mean(transforms, leaving, step, shared, reply)


def _encoded_mean(
    transforms: Sequence[Transform], leaving: Leaving, step: Step, shared: Tensors, reply: Mean
) -> tuple[Mean, int]:
    weight, tensors = reply.as_sent()
    moved = updates(step, tensors)
    if not moved:
        return reply, 0
    privacy = leaving.settings.privacy
    if privacy.clip is not None and len(moved) < len(tensors):
        raise _unprotected(min(tensors.keys() - moved.keys()), "a Mean")
    change = {name: value.cpu().double() - shared[name].cpu().double() for name, value in moved.items()}
    for transform in transforms:
        change = transform(change, leaving)
    leaves = {name: value if value.dtype is torch.float16 else value.float() for name, value in change.items()}
    if not all(value.isfinite().all() for value in leaves.values()):
        raise TrainingFailed(
            "an update does not fit into 16 bits; lower the learning rate or set wire.precision = full"
        )
    return Mean(weight, **(tensors | leaves)), int(privacy.noise > 0)


def _encoded_rows(leaving: Leaving, step: Step, reply: PerClient) -> tuple[PerClient, int]:
    privacy, name = leaving.settings.privacy, leaving.client.name
    row, noised = dict(reply.rows.get(name, {})), 0
    for tensor, value in row.items():
        upload = step.upload(tensor)
        if isinstance(upload, Copy) and privacy.clip is not None:
            raise _unprotected(tensor, "PerClient")
        if isinstance(upload, Shares) and privacy.noise:
            if value.numel() != leaving.settings.components:
                raise TrainingFailed(
                    f"{tensor!r} has {value.numel()} entries in a run with {leaving.settings.components} component(s)"
                )
            if value.numel() > 1:  # one alone is n_i, which everybody knows
                row[tensor] = _noised_shares(tensor, value, leaving)
                noised += 1
    return (PerClient.of(name, **row), noised) if noised else (reply, 0)


def _noised_shares(name: str, value: Tensor, leaving: Leaving) -> Tensor:
    n = leaving.client.n
    unit = n / math.sqrt(2)
    noised = leaving.on_grid(value.double() + unit * leaving.noise({name: value})[name], unit)
    floored = noised.clamp_min(FLOOR * n)
    return (floored * (n / floored.sum())).to(value.dtype)


def _unprotected(name: str, kind: str) -> TrainingFailed:
    return TrainingFailed(
        f"{name!r} leaves in {kind} that privacy.clip neither clips nor noises; reply with a Mean of shared parameters "
        "only, or train without privacy.clip"
    )


def updates(step: Step, tensors: Tensors) -> Tensors:
    """What of a reply is an update of shared parameters that can travel as a change: whole numbers cannot."""
    return {
        name: value
        for name, value in tensors.items()
        if isinstance(step.upload(name), Update) and value.is_floating_point()
    }


# -- at the server ---------------------------------------------------------------------------------------------------


def decode(transforms: Sequence[Transform], step: Step, shared: Tensors, reply: Reply) -> Reply:
    """The reply as the algorithm means it: changes become parameters again."""
    if isinstance(reply, PerClient) or not transforms:
        return reply
    if isinstance(reply, Combined):
        mean = decode(transforms, step, shared, reply.mean)
        assert isinstance(mean, Mean)
        return Combined(mean, reply.rows)
    weight, tensors = reply.as_sent()
    if not (changes := updates(step, tensors)):
        return reply
    was = {name: shared[name].cpu() for name in changes}
    restored = Mean(weight, **(tensors | {name: value + changes[name].to(value.dtype) for name, value in was.items()}))
    restored.nbytes = reply.nbytes  # of what was sent
    return restored
