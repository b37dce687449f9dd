"""Many small clients through one set of kernels: what each would minimise alone, a group minimises together.

A client step stays what it is and sees one client. The steps of a group take turns; one that comes to its solver
waits there, and when all have come, those with the same objective are solved as one: parameters and batches get a
dimension in front, and `torch.func.vmap` maps the objective over it. The sum of their losses has each client's
gradient in its place, so it is the same SGD loop, and the results differ by rounding only.

Two objectives are the same if they are one piece of code over the same things. Whatever differs between clients is
therefore in their batches (`extra`, `client`) and parameters; an objective that closes over something of one client
is solved alone, and so is one with tensors that do not descend.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from fedspm.core.local import Batch, Batches, minimise
from fedspm.core.replies import Tensors
from fedspm.errors import FedSPMError, TrainingFailed

Out = TypeVar("Out")
Objective = Callable[[Tensors, Batch], Tensor]
Solution = Tensors | Exception


@dataclass(frozen=True)
class Problem:
    """What a client asks of its solver: the arguments of `minimise`."""

    parameters: Tensors
    objective: Objective
    batches: Batches
    options: Mapping[str, Any]  # learning rate and momentum
    scale: Tensors

    def alone(self) -> Tensors:
        return minimise(self.parameters, self.objective, self.batches, scale=self.scale, **self.options)

    def joins(self, other: "Problem") -> bool:
        """May both be solved as one?"""
        return (
            len(self.batches) == len(other.batches)
            and not self.options["fixed"]
            and self.options == other.options
            and shapes(self.parameters) == shapes(other.parameters)
            and shapes(self.scale) == shapes(other.scale)
            and self.batches.extra.keys() == other.batches.extra.keys()
            and same(self.objective, other.objective)
        )


def shapes(tensors: Tensors) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def same(one: Any, other: Any) -> bool:
    """The same thing, the same plain value, or one piece of code that closes over the same things."""
    if one is other:
        return True
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        inside = [_inside(function) for function in (one, other)]
        return one.__code__ is other.__code__ and all(map(same, *inside))
    if isinstance(one, dict):  # of tables that are kept, for instance: empty where none are
        return not one and other == {}
    return isinstance(one, int | float | str) and type(one) is type(other) and one == other


def _inside(function: FunctionType) -> list[Any]:
    closed = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*closed, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


class Meeting:
    """Steps of several clients, of which one at a time computes; they wait for each other at their solvers."""

    def __init__(self, steps: int):
        self._turn = threading.Lock()
        self._moving = steps  # neither waiting nor finished
        self._waiting: list[tuple[Problem, Future[Tensors]]] = []

    def attend(self, step: Callable[[], Out]) -> Out:
        """Take a step whose client has `solve` as its solver."""
        with self._turn:
            try:
                return step()
            finally:
                self._one_less_moves()

    def solve(
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
        answer: Future[Tensors] = Future()
        self._waiting.append((Problem(parameters, objective, batches, options, dict(scale or {})), answer))
        self._one_less_moves()
        self._turn.release()
        try:
            return answer.result()
        finally:
            self._turn.acquire()

    def _one_less_moves(self) -> None:
        """The last one to come solves for all."""
        self._moving -= 1
        if self._moving or not self._waiting:
            return
        waiting = sorted(self._waiting, key=lambda pair: int(pair[0].batches.client))  # not as threads came
        self._waiting = []
        self._moving = len(waiting)
        try:
            solutions = solved([problem for problem, _ in waiting])
        except Exception as error:  # nobody is left waiting
            solutions = [copy(error).with_traceback(error.__traceback__) for _ in waiting]  # each is raised elsewhere
        for (_, answer), solution in zip(waiting, solutions, strict=True):
            if isinstance(solution, Exception):
                answer.set_exception(solution)
            else:
                answer.set_result(solution)


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

    def loss(w: Tensors, x: Tensor, y: Tensor, row: Tensor, client: Tensor, extra: Tensors, weight: Tensor) -> Tensor:
        rows = objective(w, Batch(x, y, row, client, extra))
        if rows.shape != y.shape:
            raise FedSPMError(f"clients_at_once: an objective answers {tuple(rows.shape)} and not a loss a row")
        return (rows * weight).sum()

    def total(moving: Tensors, batch: tuple[Any, ...]) -> Tensor:
        losses: Tensor = vmap(loss, randomness="different")(moving, *batch)
        return losses.sum()

    moved = minimise(
        _stack([problem.parameters for problem in problems]),
        total,
        _batches([problem.batches for problem in problems]),
        scale=_stack([problem.scale for problem in problems]),
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
        yield x[place], y[place], row, who, {name: value[place] for name, value in extra.items()}, weight
