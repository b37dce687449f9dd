"""What a training needs of an engine, and the engine of a configuration that trains in this process."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from fedspm.base.tensors import Tensors
from fedspm.data.federation import Federation
from fedspm.engines.local import LocalEngine
from fedspm.federated.accountant import Releases
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.exchange import Exchange
from fedspm.federated.traffic import Traffic
from fedspm.runs.config import Config

In = TypeVar("In")
Out = TypeVar("Out")


class Engine(Exchange, Protocol):
    """What a training needs of an engine, beside the exchanges that an algorithm asks for."""

    traffic: Traffic
    releases: Releases
    repeated: Counter[str]  # how often clients took local steps again, with smaller ones; sites say it themselves
    absent: dict[str, str]  # clients that were left out of an exchange of this round, and why
    refused: dict[str, str]  # those of them whose replies were refused
    suspicion: dict[str, float]  # how many times as long as the others' a client's replies of this round are at most

    def private_states(self) -> dict[str, Tensors]: ...

    def begin_round(self, number: int, participants: Sequence[int] | None = None) -> None: ...

    def invite_all(self) -> None: ...

    def init_private(self, algorithm: Algorithm) -> None: ...

    def leave_out(self, refused: Mapping[str, str]) -> None:
        """Note clients whose replies are refused, and why."""

    def undo_round(self) -> None:
        """Put private states back to before this round, which is done again."""

    def restore(self, round: int, privates: Mapping[str, Tensors]) -> None: ...

    def send(self, tensors: Tensors) -> Tensors: ...

    def map(self, function: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]: ...


@runtime_checkable
class CountingEngine(Protocol):
    """An engine whose sites evaluate on their own rows and return counts."""

    def count(self, shared: Tensors) -> dict[str, Tensors]: ...


def in_process(config: Config, federation: Federation) -> LocalEngine:
    return LocalEngine(
        federation,
        seed=config.seed,
        workers=config.workers,
        device=config.device,
        clients_at_once=config.clients_at_once,
    )
