"""The one way out of a client: it takes a step, and what the step answers passes the gate and the transforms.

Every engine calls `take_step`, in process and at a site. The gate refuses a step that is not declared, a reply with a
tensor that its step does not declare, and a row that is another client's: docs/what-leaves.md.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedspm.base.errors import Refused, TrainingFailed
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.exchange import ClientStep
from fedspm.federated.replies import Combined, Mean, PerClient, Reply
from fedspm.federated.steps import Step
from fedspm.federated.transforms import encode
from fedspm.federated.uploads import Shares, Update
from fedspm.nn.row_inversion import layers_on_rows, units_that_show


@dataclass(frozen=True)
class Taken:
    """A step that a client has taken."""

    reply: Reply  # ready to leave
    private: Tensors
    noised: int  # vectors of the reply that carry noise
    repeated: int = 0  # how often local steps were taken again, with smaller ones (`Client.descend`)


def take_step(
    method: ClientStep[Reply], step: Step, client: Client, shared: Tensors, arguments: Tensors, secret: str = ""
) -> Taken:
    """One client takes one step. The noise of its reply follows from `secret`, who, when and what."""
    algorithm: Algorithm = method.__self__  # type: ignore[attr-defined]
    if algorithm.settings.privacy.noise:
        require_covered(algorithm, step)
    reply, private = method(client, shared, **arguments)
    if algorithm.frozen_names:
        reply = without(reply, algorithm.frozen_names)
    require_declared_reply(algorithm, step, client.name, shared, reply)
    if algorithm.settings.privacy.withhold_rows:
        reply = withhold_rows(algorithm, client, shared, reply)
    if not algorithm.transforms:
        return Taken(reply, private, 0, len(client.repeated))
    encoded, noised = encode(algorithm.transforms, algorithm.settings, step, client, shared, reply, secret)
    return Taken(encoded, private, noised, len(client.repeated))


def require_step(algorithm: Algorithm, name: str) -> Step:
    """The declaration of a step; one without is refused."""
    if name not in algorithm.steps:
        raise Refused(
            f"{algorithm.settings.algorithm} has no client step {name!r}; a step declares with @step what it sends"
        )
    return algorithm.steps[name]


def require_covered(algorithm: Algorithm, step: Step) -> None:
    """Where there is noise nothing may leave without it: refuse a step that is declared to send anything exact, or
    whose reply tells by the tensors that it holds which model a client has chosen."""
    if step.in_process_only:
        return
    name = algorithm.settings.algorithm
    if exact := [tensor for tensor, upload in step.uploads.items() if not upload.noised]:
        raise TrainingFailed(
            f"privacy.noise: {exact[0]!r} of step {step.name!r} would leave without noise, so that no ε holds; {name} "
            "cannot ask for it in a run with privacy.noise"
        )
    if step.partial:
        raise TrainingFailed(
            f"privacy.noise: which tensors step {step.name!r} sends tells which model a client has chosen, so that no "
            f"ε holds; {name} cannot be trained with privacy.noise"
        )


def require_declared_reply(algorithm: Algorithm, step: Step, client: str, shared: Tensors, reply: Reply) -> None:
    """Refuse a reply with tensors that the step does not declare, or with rows that are another client's."""
    if isinstance(reply, Combined):
        require_declared_reply(algorithm, step, client, shared, reply.mean)
        require_declared_reply(algorithm, step, client, shared, reply.rows)
    elif isinstance(reply, PerClient):
        if foreign := sorted(reply.rows.keys() - {client}):
            raise Refused(
                f"the reply to step {step.name} has a row for {foreign[0]!r}; a client answers for itself only"
            )
        _require_declared(algorithm, step, reply.rows.get(client, {}), shared, apart=True)
    else:
        _require_declared(algorithm, step, reply.as_sent()[1], shared, apart=False)


def _require_declared(algorithm: Algorithm, step: Step, tensors: Tensors, shared: Tensors, apart: bool) -> None:
    where = f"step {step.name} (@step of {type(algorithm).__name__}.{step.name})"
    for name in tensors:
        upload = step.upload(name)
        if upload is None:
            raise Refused(f"{name!r} is not declared to leave a client in {where}")
        if upload.apart != apart:
            raise Refused(
                f"{name!r} leaves in a {'PerClient' if apart else 'Mean'} and is declared as "
                f"{type(upload).__name__}, which is {'kept apart' if upload.apart else 'averaged'}, in {where}"
            )
        if (name in shared) != isinstance(upload, Update) and not isinstance(upload, Shares):
            known = "is" if name in shared else "is not"
            raise Refused(f"{name!r} is declared as {type(upload).__name__} and {known} a shared parameter, in {where}")


@dataclass(frozen=True)
class SeenLayer:
    """A linear layer, and what it sees of the rows of a client."""

    weight: str
    bias: str
    inputs: Float[Tensor, "n d"]

    def change(self, shared: Tensors, sent: Tensors) -> tuple[Float[Tensor, "u d"], Float[Tensor, " u"]]:
        """What local steps have made of weight and bias, one row per unit."""
        weight, bias = (sent[name].cpu().double() - shared[name].cpu().double() for name in (self.weight, self.bias))
        return weight.flatten(0, -2), bias.flatten()


@torch.no_grad()
def layers_seen(algorithm: Algorithm, shared: Tensors, x: Float[Tensor, "n *shape"]) -> list[SeenLayer]:
    """The linear layers that see rows, or what linear layers before them make of them: whoever makes up the weights can
    let rows pass these unharmed. Behind an encoder there are heads and tilts, a row of them one unit. Not what follows
    a convolution."""
    rows = algorithm.standardise(shared, x).flatten(1)
    found = {names: [rows.cpu()] for names in layers_on_rows(shared, rows.shape[1])}
    encoders = [each for each in algorithm.encoders if shared.keys() >= set(each.names) and not each.convolves]
    for encoder in encoders if x.ndim == 2 else ():
        for layer, inputs in encoder.linear_inputs(shared, rows).items():
            names = f"{layer}.weight", f"{layer}.bias"
            if shared.keys() >= set(names):
                found.setdefault(names, [inputs.cpu()])
        for names in _pairs({name: value for name, value in shared.items() if name not in encoder.names}):
            if shared[names[0]].shape[-1] == encoder.dimension:
                found.setdefault(names, []).extend(encoder(shared, rows).cpu().unbind(1))
    return [SeenLayer(*names, inputs) for names, several in found.items() for inputs in several]


def _pairs(shared: Tensors) -> list[tuple[str, str]]:
    """Names of what may be weight and bias of one layer: both begin alike, and the weight has a vector per bias."""
    return [
        (weight, bias)
        for weight, value in shared.items()
        for bias, other in shared.items()
        if value.ndim > 1 and other.shape == value.shape[:-1] and weight.partition(".")[0] == bias.partition(".")[0]
    ]


def withhold_rows(algorithm: Algorithm, client: Client, shared: Tensors, reply: Reply) -> Reply:
    """The reply with those units of linear layers unchanged whose update would show a row of the client."""
    if isinstance(reply, Combined):
        mean = withhold_rows(algorithm, client, shared, reply.mean)
        assert isinstance(mean, Mean)
        return Combined(mean, reply.rows)
    if isinstance(reply, PerClient):
        return reply
    weight, tensors = reply.as_sent()
    if not any(name in shared for name in tensors):
        return reply
    kept = dict(tensors)
    for layer in layers_seen(algorithm, shared, client.x):
        if tensors.keys() >= {layer.weight, layer.bias}:
            shown = units_that_show(*layer.change(shared, tensors), layer.inputs)
            for name in (layer.weight, layer.bias):
                mask = shown.to(tensors[name].device).view(shared[layer.bias].shape)
                mask = mask[..., None] if name == layer.weight else mask
                kept[name] = torch.where(mask, shared[name], kept[name])
    return Mean(weight, **kept)


def without(reply: Reply, names: frozenset[str]) -> Reply:
    """The reply without the tensors that nobody changes: everybody has them."""
    if isinstance(reply, Combined):
        mean = without(reply.mean, names)
        assert isinstance(mean, Mean)
        return Combined(mean, reply.rows)
    if isinstance(reply, PerClient):
        return PerClient({client: _others(row, names) for client, row in reply.rows.items()})
    weight, tensors = reply.as_sent()
    return Mean(weight, **_others(tensors, names))


def _others(tensors: dict[str, Tensor], names: frozenset[str]) -> Tensors:
    return {name: value for name, value in tensors.items() if name not in names}
