"""The in-process engine: all clients on this machine, all cores used, the same bits with any number of workers.

Workers are threads: PyTorch leaves the interpreter's lock while it computes, so they share the data, the parameters
and the program without a copy. Each computes with one thread of its own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain
from types import TracebackType
from typing import TypeVar

import torch
from torch import Tensor

from fedspm.base.errors import FedSPMError, Refused, TrainingFailed
from fedspm.base.tensors import Tensors, moved
from fedspm.base.threads import cores, keep_freed_memory, one_core_threads
from fedspm.data.federation import Federation
from fedspm.federated.accountant import Releases
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.exchange import Answer, ClientStep
from fedspm.federated.gate import Taken, require_step, take_step
from fedspm.federated.replies import Reply
from fedspm.federated.robust.merging import Merging, note_suspicion
from fedspm.federated.steps import Step
from fedspm.federated.traffic import Traffic
from fedspm.federated.transforms import decode
from fedspm.nn.sgd import Solver, minimise
from fedspm.nn.vmap_solver import together

In = TypeVar("In")
Out = TypeVar("Out")
HELD = 32  # replies that may wait for those before them


class LocalEngine:
    """Holds the clients' rows and private states; implements `Exchange`."""

    participants: Sequence[int]  # clients that the exchanges of this round reach

    def __init__(
        self,
        federation: Federation,
        *,
        seed: int,
        workers: int | str = "auto",
        device: str = "auto",
        clients_at_once: int = 1,
    ):
        self.federation = federation
        self.device = torch.device(choose_device(device))
        self.workers = cores() if workers == "auto" else int(workers)
        self.privates: dict[str, Tensors] = {}
        self.begin_round(0)
        self.releases = Releases()
        self.repeated: Counter[str] = Counter()
        self._seed = seed
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)  # the server's own arithmetic too: its bits must not depend on the machine's cores
        keep_freed_memory()
        self._pool = one_core_threads(self.workers, "fedspm")
        self._at_once = clients_at_once
        self._steps = one_core_threads(self.workers * clients_at_once, "fedspm-step")  # started as they are needed
        self.data = [(part.x.to(self.device), part.y.to(self.device)) for part in federation.train]
        self._weights = [None if part.weight is None else part.weight.to(self.device) for part in federation.train]

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._steps.shutdown()
        torch.set_num_threads(self._threads_before)

    def begin_round(self, number: int, participants: Sequence[int] | None = None) -> None:
        """From here on, exchanges belong to this round and reach these clients; without a choice, all."""
        self.round = number
        self._before = dict(self.privates)  # states are never changed in place
        self.invite_all()
        if participants is not None:
            self.participants = participants
        self.traffic = Traffic()
        self.absent: dict[str, str] = {}  # in process everybody answers, and some are refused
        self.refused: dict[str, str] = {}
        self.suspicion: dict[str, float] = {}

    def invite_all(self) -> None:
        self.participants = range(len(self.federation.names))

    def init_private(self, algorithm: Algorithm) -> None:
        for i, name in enumerate(self.federation.names):
            self.privates[name] = self.send(algorithm.init_private(self._client(i, {})))

    def private_states(self) -> dict[str, Tensors]:
        return self.privates

    def undo_round(self) -> None:
        """Put private states back to before this round, which is done again."""
        self.privates = dict(self._before)

    def restore(self, round: int, privates: Mapping[str, Tensors]) -> None:
        """Go on from a checkpoint."""
        self.privates = {name: self.send(private) for name, private in privates.items()}

    def __call__(self, step: ClientStep[Answer], shared: Tensors, **arguments: Tensor) -> Answer:
        """The round's clients take the step; replies are folded in client order: the same bits with any number of
        workers."""
        algorithm: Algorithm = step.__self__  # type: ignore[attr-defined]
        declared = require_step(algorithm, step.__name__)
        shared = algorithm.sent(shared)
        new = {name: value for name, value in shared.items() if name not in algorithm.frozen_names}
        self.traffic.send(new | arguments, [self.federation.names[i] for i in self.participants])
        there, told = self.send(shared), self.send(arguments)

        def take(i: int, solver: Solver = minimise) -> tuple[Taken, Reply]:
            client = self._client(i, self.privates[self.federation.names[i]], solver, declared.rows, declared.truth)
            try:
                taken = take_step(step, declared, client, there, told)
                return taken, self.read(algorithm, declared, client, there, taken.reply)
            except (TrainingFailed, Refused) as error:
                kind = Refused if isinstance(error, Refused) else TrainingFailed
                raise kind(f"{self._where(client, declared.name)}: {error}") from error
            except Exception as error:  # of somebody's own method or encoder: its traceback is what they need
                error.add_note(f"fedspm: {self._where(client, declared.name)}")
                raise

        merging = Merging(algorithm, declared, shared)
        refused: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for i, (taken, reply) in zip(self.participants, self._taken(take), strict=True):
            name = self.federation.names[i]
            self.privates[name] = taken.private  # as at a site, which does not know what becomes of its reply
            if taken.noised:
                self.releases.add([name], taken.noised)
            self.repeated += Counter({name: taken.repeated})
            sizes[name] = taken.reply.nbytes
            try:
                merging.check(name, reply)
                merging.add(name, reply)
            except Refused as error:
                refused[name] = str(error)
        refused |= merging.refuse()
        note_suspicion(self.suspicion, merging)
        self._require_enough(declared, refused)
        self.leave_out({name: f"client {name!r}, step {declared.name}: {why}" for name, why in refused.items()})
        self.traffic.receive({name: size for name, size in sizes.items() if name not in refused})
        return merging.result()  # type: ignore[return-value]

    def read(self, algorithm: Algorithm, step: Step, client: Client, shared: Tensors, reply: Reply) -> Reply:
        """A reply as the server reads it."""
        return decode(algorithm.transforms, step, shared, reply)

    def leave_out(self, refused: Mapping[str, str]) -> None:
        self.absent |= refused
        self.refused |= refused

    def _require_enough(self, step: Step, refused: dict[str, str]) -> None:
        """A round goes on without the replies that are refused; the start does not, nor a round of nobody."""
        if refused and (step.when != "round" or len(refused) == len(self.participants)):
            name, why = next(iter(refused.items()))
            raise TrainingFailed(f"client {name!r}, round {self.round}, step {step.name}: {why}")

    def _where(self, client: Client, step: str) -> str:
        return f"client {client.name!r}, round {self.round}, step {step}"

    def _taken(self, take: Callable[..., Out]) -> Iterator[Out]:
        """`take` of every participant, one by one or in groups whose solvers work together."""
        if self._at_once > 1:
            return self._taken_together(take)
        if len(self.participants) > HELD:
            return self.map(take, self.participants)
        largest_first = sorted(self.participants, key=lambda i: -len(self.data[i][1]))  # or the last one may be alone
        waiting = {i: self._pool.submit(take, i) for i in largest_first}
        return (waiting.pop(i).result() for i in self.participants)

    def _taken_together(self, take: Callable[..., Out]) -> Iterator[Out]:
        def take_all(group: Sequence[int]) -> list[Out]:
            return together([partial(take, i) for i in group], self._steps)

        groups = [self.participants[i : i + self._at_once] for i in range(0, len(self.participants), self._at_once)]
        return chain.from_iterable(self.map(take_all, groups))

    def send(self, tensors: Tensors) -> Tensors:
        """To the device that clients compute on; replies come back to the CPU, where the server averages."""
        return tensors if self.device.type == "cpu" else moved(tensors, self.device)

    def map(self, function: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
        """`function` over `items` on all workers, answers in order, a few of them in flight."""
        waiting: list[Future[Out]] = []
        for item in items:
            waiting.append(self._pool.submit(function, item))
            if len(waiting) > 2 * self.workers:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()

    def _client(
        self, i: int, private: Tensors, solver: Solver = minimise, rows: str = "train", truth: bool = False
    ) -> Client:
        (x, y), weight = self.data[i], self._weights[i]
        if rows == "test":
            assert self.federation.test is not None, "a step over test rows of a federation that has none"
            x, y = (part.to(self.device) for part in (self.federation.test[i].x, self.federation.test[i].y))
            weight = None
        component = self.federation.truth.train[i] if truth and self.federation.truth else None
        name = self.federation.names[i]
        return Client(name, i, x, y, private, self.round, self._seed, solver, weight=weight, component=component)


def choose_device(wanted: str) -> str:
    if wanted != "auto":
        try:
            torch.zeros(1, device=wanted)
        except (RuntimeError, AssertionError) as error:
            raise FedSPMError(f"device = {wanted!r} cannot be used here: {str(error).splitlines()[0]}") from error
        return wanted
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
