"""Encoders by name, by import path, or from a network: copies that start apart from each other."""

import copy
import importlib
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from fedspm.base.errors import FedSPMError
from fedspm.base.plugins import ENCODERS, plugin, plugin_names, working_directory_last
from fedspm.base.randomness import seed_of
from fedspm.nn.cnn import CNN, SMALLEST
from fedspm.nn.encoder import Encoder, reason_of
from fedspm.nn.mlp import MLP
from fedspm.nn.resnet import ResNet

Source = str | nn.Module  # a name, package.module:factory, or a network
Factory = Callable[[tuple[int, ...], int], nn.Module]


def build_encoder(
    role: str,
    source: Source,
    shape: tuple[int, ...],
    dimension: int,
    copies: int,
    seed: int,
    *,
    normalise: str = "group",
    grid: int = 4,
) -> Encoder:
    """`copies` networks that start apart from each other, the same for every algorithm with the same seed.

    `normalise` and `grid` are for the ResNet.
    """
    networks = []
    for c in range(copies):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, "encoder", role, c))
            try:
                networks.append(_network(role, source, shape, dimension, normalise, grid, fresh=c > 0))
            except FedSPMError:
                raise
            except Exception as error:  # whatever somebody's factory does with a shape it does not expect
                raise FedSPMError(
                    f"the {role} encoder {source!r} cannot be made for rows of shape {shape}: {reason_of(error)}"
                ) from error
    if isinstance(source, nn.Module) and copies > 1 and any(value.requires_grad for value in source.parameters()):
        alike = [name for name, part in source.named_modules() if _stays(part)]
        warnings.warn(
            f"only the first of the {copies} {role} networks keeps the weights it was given; in the others what is not "
            "frozen (requires_grad_(False)) starts anew, so that they start apart"
            + (
                f", except in parts without reset_parameters(): {', '.join(name or 'the whole' for name in alike)}"
                if alike
                else ""
            ),
            stacklevel=2,
        )
    if any(_drops_out(part) for part in networks[0].modules()):
        warnings.warn(
            f"the {role} encoder has dropout, which draws from a generator that workers share: "
            "two trainings will not be the same to the bit",
            stacklevel=2,
        )
    return Encoder(role, networks, shape)


def _network(
    role: str, source: Source, shape: tuple[int, ...], dimension: int, normalise: str, grid: int, fresh: bool
) -> nn.Module:
    if isinstance(source, nn.Module):
        network = copy.deepcopy(source).cpu()
        return _started_apart(network) if fresh else network
    large = len(shape) == 3 and min(shape[1:]) >= SMALLEST
    if source == "auto":
        source = ("resnet" if role == "predictor" else "cnn") if large else "mlp"
    if source in ("resnet", "cnn") and len(shape) != 3:
        raise FedSPMError(f"the {role} encoder {source!r} takes images, the rows have shape {shape}; use 'mlp'")
    if source == "cnn" and not large:
        raise FedSPMError(
            f"the {role} encoder 'cnn' takes images of at least {SMALLEST} × {SMALLEST} pixels, the rows have shape "
            f"{shape}; use 'mlp'"
        )
    if source == "resnet":
        return ResNet(shape, dimension, normalise, grid)
    if source == "cnn":
        return CNN(shape, dimension)
    if source == "mlp":
        return MLP(shape, dimension)
    offered: Factory | None = plugin("encoders", source)
    with working_directory_last():  # whoever names a factory may have it there
        network = (offered or _imported(role, source))(shape, dimension)
    if not isinstance(network, nn.Module):
        raise FedSPMError(f"{role}.encoder = {source!r} made a {type(network).__name__}, not an nn.Module")
    return network


def _started_apart(network: nn.Module) -> nn.Module:
    """A later copy of a network that was given: what can be trained starts anew, what is frozen stays."""
    for part in network.modules():
        frozen = any(not value.requires_grad for value in part.parameters())
        if (reset := _reset_of(part)) and not frozen:
            reset()
    return network


def _reset_of(part: nn.Module) -> Callable[[], object] | None:
    """What draws its weights anew; attention has it under a private name."""
    found = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
    return found if callable(found) else None


def _stays(part: nn.Module) -> bool:
    """Has it parameters of its own that could be trained, and nothing that draws them anew?"""
    return _reset_of(part) is None and any(value.requires_grad for value in part.parameters(recurse=False))


def _drops_out(part: nn.Module) -> bool:
    share = part.p if isinstance(part, _DropoutNd) else getattr(part, "dropout", 0)  # of attention, and recurrent nets
    return isinstance(share, float) and share > 0


def _imported(role: str, source: str) -> Factory:
    module, _, name = source.partition(":")
    if not name:
        known = ", ".join([*ENCODERS, *plugin_names("encoders")])
        raise FedSPMError(f"{role}.encoder = {source!r} is not known; use {known} or package.module:factory")
    try:
        factory: Factory = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever somebody's module does when it is imported
        raise FedSPMError(f"{role}.encoder = {source!r} cannot be imported: {reason_of(error)}") from error
    return factory
