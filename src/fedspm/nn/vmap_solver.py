"""Many small clients through one set of kernels: what each would minimise alone, a group minimises together.

A client step stays what it is and sees one client. The steps of a group take turns; one that comes to its solver
stops there, and when all have, those with the same objective are solved as one: parameters and batches get a
dimension in front, and `torch.func.vmap` maps the objective over it. The sum of their losses has each client's
gradient in its place, so it is the same SGD loop, and the results differ by rounding only.

Two objectives are the same if they are one piece of code over the same things. Whatever differs between clients is
therefore in their batches (`extra`, `constants`, `client`) and parameters; an objective that closes over something
of one client is solved alone, and so is one that is handed tensors which stay fixed, or that `vmap` cannot map.
"""

import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from fedspm.base.errors import FedSPMError, TrainingFailed
from fedspm.base.tensors import Tensors
from fedspm.nn.sgd import Batch, Batches, Solver, minimise

Out = TypeVar("Out")
Objective = Callable[[Tensors, Batch], Tensor]
Solution = Tensors | BaseException


def together(steps: Sequence[Callable[[Solver], Out]], threads: Executor) -> list[Out]:
    """What steps answer that are taken together; `threads` must have one for each of them."""
    group: list[_Step[Out]] = []
    try:
        for step in steps:
            group.append(_Step(step))
            group[-1].begin(threads)
        for each in group:
            each.go_on()
        while waiting := [each for each in group if each.problem]:
            solutions = solved([each.problem for each in waiting if each.problem])
            for each, solution in zip(waiting, solutions, strict=True):
                each.go_on(solution)
    except BaseException:
        for each in group:
            each.leave()
        raise
    return [each.answer() for each in group]


class _Step(Generic[Out]):
    """A client step in a thread of its own, which moves only while `go_on` waits for it."""

    def __init__(self, step: Callable[[Solver], Out]):
        self._step = step
        self._told, self._heard = threading.Semaphore(0), threading.Semaphore(0)
        self._solution: Solution = {}
        self.problem: Problem | None = None  # what it wants solved

    def begin(self, threads: Executor) -> None:
        self._done: Future[Out] = threads.submit(self._run)

    def go_on(self, solution: Solution | None = None) -> None:
        """With the solution of its problem, to the next one or to its end."""
        self._solution, self.problem = solution or {}, None
        self._told.release()
        self._heard.acquire()

    def leave(self) -> None:
        """Nothing will be solved any more: let its thread go."""
        self._solution = CancelledError()
        self._told.release()

    def answer(self) -> Out:
        return self._done.result()

    def _run(self) -> Out:
        try:
            self._wait()
            return self._step(self._solve)
        finally:
            self._heard.release()

    def _wait(self) -> Tensors:
        self._told.acquire()
        if isinstance(self._solution, BaseException):
            raise self._solution
        return self._solution

    def _solve(
        self,
        parameters: Tensors,
        objective: Objective,
        batches: Batches,
        *,
        learning_rate: float,
        momentum: float,
        fixed: Collection[str] = (),
        scale: Mapping[str, Tensor] | None = None,
    ) -> Tensors:
        options = {"learning_rate": learning_rate, "momentum": momentum, "fixed": tuple(fixed)}
        self.problem = Problem(parameters, objective, batches, options, dict(scale or {}))
        self._heard.release()
        return self._wait()


@dataclass(frozen=True)
class Problem:
    """What a client asks of its solver: the arguments of `minimise`."""

    parameters: Tensors
    objective: Objective
    batches: Batches
    options: Mapping[str, Any]  # learning rate, momentum and what is fixed
    scale: Tensors

    def alone(self) -> Tensors:
        return minimise(self.parameters, self.objective, self.batches, scale=self.scale, **self.options)

    def factors(self) -> Tensors:
        """`scale` in full"""
        return {name: factor.expand_as(self.parameters[name]) for name, factor in self.scale.items()}

    def joins(self, other: "Problem") -> bool:
        """May both be solved as one?"""
        return (
            not self.options["fixed"]
            and self.options == other.options
            and len(self.batches) == len(other.batches)
            and _kinds(self.parameters) == _kinds(other.parameters)
            and _kinds(self.scale) == _kinds(other.scale)
            and _kinds(self.batches.extra, 1) == _kinds(other.batches.extra, 1)
            and _kinds(self.batches.constants) == _kinds(other.batches.constants)
            and same(self.objective, other.objective)
        )


def _kinds(tensors: Tensors, first: int = 0) -> dict[str, tuple[object, ...]]:
    """Type, device and shape of each, the shape from dimension `first` on."""
    return {name: (value.dtype, value.device, value.shape[first:]) for name, value in tensors.items()}


def same(one: Any, other: Any) -> bool:
    """The same thing, the same plain value, or one piece of code that closes over the same things."""
    if one is other:
        return True
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        try:
            return one.__code__ is other.__code__ and all(map(same, _inside(one), _inside(other)))
        except (RecursionError, ValueError):  # it closes over itself, or over what is not there yet
            return False
    return isinstance(one, int | float | str) and type(one) is type(other) and one == other


def _inside(function: FunctionType) -> list[Any]:
    closed = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*closed, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def solved(problems: Sequence[Problem]) -> list[Solution]:
    """Each problem's solution or failure, in order."""
    solutions: dict[int, Solution] = {}
    left = list(range(len(problems)))
    while left:
        group = [i for i in left if i == left[0] or problems[left[0]].joins(problems[i])]
        left = [i for i in left if i not in group]
        solutions |= zip(group, _as_one([problems[i] for i in group]), strict=True)
    return [solutions[i] for i in range(len(problems))]


def _as_one(problems: Sequence[Problem]) -> list[Solution]:
    if len(problems) > 1:
        try:
            return list(stacked(problems))
        except TrainingFailed:  # of one of them: which?
            pass
        except RuntimeError as error:  # an operation that vmap does not know, or a mistake, which shows again alone
            reason = str(error).splitlines()[0]
            warnings.warn(f"clients_at_once: clients are trained one by one, since {reason}", stacklevel=2)
    found: list[Solution] = []
    for problem in problems:
        try:
            found.append(problem.alone())
        except TrainingFailed as error:
            found.append(error)
    return found


def stacked(problems: Sequence[Problem]) -> Iterator[Tensors]:
    """Solutions of problems that may be solved as one."""
    first = problems[0]
    objective = first.objective

    def loss(
        w: Tensors,
        x: Tensor,
        y: Tensor,
        row: Tensor,
        client: Tensor,
        extra: Tensors,
        constants: Tensors,
        weight: Tensor,
    ) -> Tensor:
        rows = objective(w, Batch(x, y, row, client, extra, constants))
        if rows.shape != y.shape:
            raise FedSPMError(f"clients_at_once: an objective answers {tuple(rows.shape)} and not a loss a row")
        return (rows * weight).sum()

    def of_each(moving: Tensors, batch: tuple[Any, ...]) -> Tensor:
        losses: Tensor = vmap(loss, randomness="different")(moving, *batch)
        return losses

    moved = minimise(
        _stack([problem.parameters for problem in problems]),
        of_each,
        _batches([problem.batches for problem in problems]),
        scale=_stack([problem.factors() for problem in problems]),
        apart=True,
        **first.options,
    )
    for i in range(len(problems)):
        yield {name: value[i].clone() for name, value in moved.items()}  # or a private state would keep them all


def _stack(states: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def _batches(clients: Sequence[Batches]) -> Iterator[tuple[Any, ...]]:
    """Batches of all clients side by side. A client with smaller ones has its first row in the places that are left,
    with no weight."""
    x, y = (torch.cat([getattr(client, part) for client in clients]) for part in ("x", "y"))
    extra = {name: torch.cat([client.extra[name] for client in clients]) for name in clients[0].extra}
    constants = _stack([client.constants for client in clients])
    who = torch.stack([client.client for client in clients])
    steps, widest = len(clients[0]), max(client.order.shape[1] for client in clients)
    rows = y.new_zeros(steps, len(clients), widest)
    weight = x.new_zeros(len(clients), widest)
    offset = torch.tensor([0, *(len(client.y) for client in clients[:-1])], device=y.device).cumsum(0)[:, None]
    for i, client in enumerate(clients):
        size = client.order.shape[1]
        rows[:, i, :size] = client.order
        weight[i, :size] = 1 / size
    for row in rows:
        place = row + offset
        yield x[place], y[place], row, who, {name: value[place] for name, value in extra.items()}, constants, weight
