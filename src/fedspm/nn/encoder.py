"""Copies of a network as one pure function of its tensors: (n, 1, d) for 1×, (n, C, d) for C×."""

import copy
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedspm.base.errors import FedSPMError
from fedspm.nn.multiply_adds import MultiplyAdds

Slots = dict[str, list[tuple[dict[str, Any], str]]]


class _Bank(nn.Module):
    """The copies, registered under the role's name so that dotted names read `predictor.0.stem.weight`."""

    def __init__(self, role: str, networks: list[nn.Module]):
        super().__init__()
        self.add_module(role, nn.ModuleList(networks))

    def forward(self, x: Tensor, only: int | None = None) -> Tensor:
        (networks,) = self.children()
        answers = [network(x) for c, network in enumerate(networks.children()) if only in (None, c)]
        return answers[0].unsqueeze(1) if len(answers) == 1 else torch.stack(answers, 1)


class _Local(threading.local):
    """What a thread has for itself; a copy or a pickle of an encoder starts without, and makes it again."""

    def __reduce__(self) -> tuple[type["_Local"], tuple[()]]:
        return _Local, ()


class Encoder:
    """The tensors live in a flat dict, under dotted names that start with `role`; this is the function of them.

    `fixed` names those that descent leaves alone: parameters that the network came with frozen, and buffers. `frozen`
    names those that nothing ever changes: such parameters, and the running statistics of layers that have no others. A
    buffer that is not persistent is a constant of the network, and none of its tensors.
    """

    def __init__(self, role: str, networks: list[nn.Module], shape: tuple[int, ...]):
        self.role = role
        self.copies = len(networks)
        self._shape = shape
        self._bank = _Bank(role, networks)
        if len(shape) == 3:
            self._bank = self._bank.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._local = _Local()
        self.parameters = tuple(name for name, _ in self._bank.named_parameters())
        persistent = self._bank.state_dict().keys()
        self.buffers = tuple(name for name, _ in self._bank.named_buffers() if name in persistent)
        self._constants = tuple(name for name, _ in self._bank.named_buffers() if name not in persistent)
        still = tuple(name for name, value in self._bank.named_parameters() if not value.requires_grad)
        self._still_layers = frozen_layers(self._bank)
        self.frozen = (*still, *(name for name in self.buffers if name.rpartition(".")[0] in self._still_layers))
        self.fixed = (*still, *self.buffers)
        self.names = (*self.parameters, *self.buffers)
        self._names_of = [[name for name in self.names if name.startswith(f"{role}.{c}.")] for c in range(self.copies)]
        self._require_numbers()
        self.dimension = self._probe()

    def initial(self) -> dict[str, Tensor]:
        state = dict(self._bank.named_parameters()) | dict(self._bank.named_buffers())
        return {name: state[name].detach().clone() for name in self.names}

    def take(self, tensors: Mapping[str, Tensor], only: int | None = None) -> dict[str, Tensor]:
        """The tensors of this encoder, or of one of its copies, out of a larger dict."""
        names = self.names if only is None else self._names_of[only]
        return {name: tensors[name] for name in names}

    def __call__(
        self,
        tensors: Mapping[str, Tensor],
        x: Float[Tensor, "n *shape"],
        *,
        training: bool = False,
        only: int | None = None,
    ) -> Float[Tensor, "n e d"]:
        """What all copies say of the rows, or only one of them.

        The tensors are put where the module looks for them, and stay there until the next call: it is this thread's
        own module. `torch.func.functional_call` does the same with checks that take longer than a small network.
        """
        bank, slots = self._mine()
        for name in self._constants:
            for holder, key in slots[name]:
                holder[key] = holder[key].to(x.device)
        if bank.training != training:
            self._set_mode(bank, training)
        for name in self.names if only is None else self._names_of[only]:
            for holder, key in slots[name]:
                holder[key] = tensors[name]
        answer: Tensor = bank(x, only)
        return answer

    @torch.no_grad()
    def linear_inputs(self, tensors: Mapping[str, Tensor], x: Float[Tensor, "n *shape"]) -> dict[str, Tensor]:
        """What each linear layer sees of the rows, by the name of the layer, where that is one vector per row."""
        bank, _ = self._mine()
        found: dict[str, Tensor] = {}

        def noted(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            return lambda layer, seen: found.update({name: seen[0].detach().clone()} if seen[0].ndim == 2 else {})

        layers = [(name, layer) for name, layer in bank.named_modules() if isinstance(layer, nn.Linear)]
        hooks = [layer.register_forward_pre_hook(noted(name)) for name, layer in layers]
        try:
            self(tensors, x)
        finally:
            for hook in hooks:
                hook.remove()
        return found

    @property
    def convolves(self) -> bool:
        """Has any layer more than one vector per row to see?"""
        return any(value.ndim > 2 for value in self.initial().values())

    def networks(self) -> list[nn.Module]:
        """Plain modules, a copy of each."""
        (networks,) = copy.deepcopy(self._bank).children()
        return list(networks.children())

    def size(self) -> int:
        """Number of parameters."""
        state = dict(self._bank.named_parameters())
        return sum(state[name].numel() for name in self.parameters)

    def multiply_adds(self) -> int:
        """Multiply-adds of one row through all copies."""
        state = self.initial()
        with torch.no_grad(), MultiplyAdds() as counted:
            self(state, torch.zeros(1, *self._shape))
        return int(counted.total)

    def _mine(self) -> tuple[nn.Module, Slots]:
        """A copy for this thread, and where it keeps the tensors of every name (tied ones in several places)."""
        if not hasattr(self._local, "mine"):
            bank = copy.deepcopy(self._bank)
            self._set_mode(bank, False)
            state = dict(bank.named_parameters()) | dict(bank.named_buffers())
            name_of = {id(tensor): name for name, tensor in state.items()}
            slots: Slots = {name: [] for name in state}
            for module in bank.modules():
                for holder in (module._parameters, module._buffers):
                    for key, tensor in holder.items():
                        if id(tensor) in name_of:
                            slots[name_of[id(tensor)]].append((holder, key))
            self._local.mine = bank, slots
        mine: tuple[nn.Module, Slots] = self._local.mine
        return mine

    def _set_mode(self, bank: nn.Module, training: bool) -> None:
        bank.train(training)
        for name in self._still_layers:  # their running statistics do not move
            bank.get_submodule(name).eval()

    def _require_numbers(self) -> None:
        """Everything is averaged over clients: a mask of −∞ or a complex rotation is none of what is trained."""
        for name, value in self.initial().items():
            if value.is_complex() or not torch.isfinite(value).all():
                what = "complex numbers" if value.is_complex() else "a value that is not finite"
                raise FedSPMError(
                    f"the {self.role} encoder holds {what} in {name}, which cannot be averaged over clients; a "
                    "constant is kept out of what is trained and sent by register_buffer(…, persistent=False)"
                )

    def _probe(self) -> int:
        with torch.no_grad():
            try:
                answer = self(self.initial(), torch.zeros(2, *self._shape))
            except Exception as error:  # whatever somebody's network does with rows it does not expect
                raise FedSPMError(
                    f"the {self.role} encoder does not take rows of shape {self._shape}: {reason_of(error)}"
                ) from error
        if answer.ndim != 3:
            raise FedSPMError(
                f"the {self.role} encoder answers a {answer.ndim - 2}-dimensional array a row; it must answer a vector"
            )
        if answer.dtype is not torch.float32:
            raise FedSPMError(f"the {self.role} encoder answers {answer.dtype}; it must answer torch.float32")
        return answer.shape[2]


def frozen_layers(network: nn.Module) -> frozenset[str]:
    """Layers with running statistics whose parameters are all frozen; one without parameters follows the network."""
    trains = any(value.requires_grad for value in network.parameters())
    found = set()
    for name, layer in network.named_modules():
        own = [value.requires_grad for value in layer.parameters(recurse=False)]
        if any(True for _ in layer.buffers(recurse=False)) and not (any(own) if own else trains):
            found.add(name)
    return frozenset(found)


def reason_of(error: Exception) -> str:
    """What kind of error, and the first line of what it says, if it says anything."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
