"""System, average and routing accuracy, the same way for every algorithm.

`system_accuracy` and `balanced_accuracy` are of the system's answers to everybody's test rows; `average_accuracy`,
`average_balanced_accuracy`, `worst_client_accuracy` and, in a client's row, `accuracy` are of the clients' own answers.
Balanced accuracy is the mean of the classes' recalls: guessing the commonest is no help. `scores` has the metrics of
`fedspm.federated.metrics` for both, `system` and `own`, over all rows and in every client's row. A method that cannot
route says what most clients say, and its probabilities are the mean of theirs.
`log_likelihood` is the mean of log P_i(y | x) under the rows' own clients, and `predictive_log_likelihood` that of
log P(i, y | x) = log P(i | x) + log P_i(y | x), which does not depend on the gauge of the density ratios.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.data.federation import Federation
from fedspm.data.part import Part
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.metrics import CURVES, LARGEST, balanced_accuracy, component_agreement, routing_metrics, scores
from fedspm.nn.sgd import CHUNK, chunks

NAMED = 8  # rows that an error names
SMALLEST = 1e-30  # a probability below this counts as this: one row must not make a mean infinite
In = TypeVar("In")
Out = TypeVar("Out")


@runtime_checkable
class Map(Protocol):
    """`map`, perhaps on many workers, answers in order."""

    def __call__(self, function: Callable[[In], Out], items: Iterable[In], /) -> Iterator[Out]: ...


@dataclass(frozen=True)
class Model:
    """A trained federation: everything that is needed to route and to predict."""

    algorithm: Algorithm
    shared: Tensors
    privates: list[Tensors]  # in client order

    def posterior(self, embedding: Tensors) -> Float[Tensor, "n m"] | None:
        """P(client | x): eq. 10 over its sum."""
        scores = self.algorithm.log_scores(self.shared, embedding)
        return None if scores is None else torch.softmax(scores, dim=1)

    def local(self, client: int, embedding: Tensors) -> Float[Tensor, "n k"]:
        return self.algorithm.local_probabilities(client, self.privates[client], self.shared, embedding)

    def embed(self, x: Float[Tensor, "n *shape"]) -> Tensors:
        device = next(iter(self.shared.values())).device
        return self.algorithm.embed(self.shared, x.to(device))

    def routed(self, client: Int[Tensor, " n"], embedding: Tensors) -> Float[Tensor, "n k"]:
        """What the client that each row is routed to answers."""
        answer = torch.zeros(len(client), self.algorithm.task.classes, device=client.device)
        for i in client.unique().tolist():
            mine = client == i
            answer[mine] = self.local(i, {name: value[mine] for name, value in embedding.items()})
        return answer

    def everybody(self, embedding: Tensors) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"]]:
        """Shares of the clients' votes for each class, and the mean of their probabilities: what a method that cannot
        route answers. By majority voting it is evaluated, as in the paper. Every client weighs the same in both:
        nothing says that a large one is the right one."""
        votes, total = torch.zeros(2, 1)
        for i in range(self.algorithm.task.clients):
            said = self.local(i, embedding)
            votes = votes.to(said) + one_hot(said.argmax(1), self.algorithm.task.classes)
            total = total.to(said) + said
        return votes / self.algorithm.task.clients, total / self.algorithm.task.clients

    def answer(self, embedding: Tensors) -> tuple[Float[Tensor, "n m"] | None, Float[Tensor, "n k"]]:
        """The posterior over clients and the class probabilities of the client that each row is routed to; without
        routing None and the mean over all clients."""
        posterior = self.posterior(embedding)
        if posterior is None:
            return None, self.everybody(embedding)[1]
        return posterior, self.routed(posterior.argmax(1), embedding)

    def probabilities(self, embedding: Tensors) -> Float[Tensor, "n k"]:
        return self.answer(embedding)[1]


def require_finite_answers(found: Float[Tensor, "n *_"], what: str, called: Sequence[str] | None = None) -> None:
    """A row of finite but absurd values overflows inside a network, and NaN has no likeliest class."""
    bad = (~torch.isfinite(found.flatten(1)).all(1)).nonzero()[:, 0].tolist()
    if bad:
        if called:
            named = "; ".join(called[j] for j in bad[:NAMED])
        else:
            named = f"row{'s' * (len(bad) > 1)} {', '.join(str(j + 1) for j in bad[:NAMED])}"
        named += f" and {len(bad) - NAMED} more" * (len(bad) > NAMED)
        raise FedSPMError(f"{what} cannot be computed for {named}: values of x are too far from all that is known")


@dataclass(frozen=True)
class Predictions:
    """What was predicted of test rows."""

    y: Int[Tensor, " n"]
    system: Int[Tensor, " n"]  # predicted classes; argmax takes the smallest class of a tie
    own: Int[Tensor, " n"]
    p_system: Float[Tensor, "n k"]  # of the system
    p_own: Float[Tensor, "n k"]  # P_i(· | x) under the row's own client
    routed: Int[Tensor, " n"] | None
    log_home: Float[Tensor, " n"] | None  # log P(i | x) of the row's own client


@torch.no_grad()
def ask(model: Model, home: Int[Tensor, " n"], x: Tensor, y: Tensor) -> Predictions:
    """`home` are the rows' own clients."""
    embedding = model.embed(x)
    posterior = model.posterior(embedding)
    routed = log_home = None
    if posterior is None:
        system, p_system = model.everybody(embedding)
    else:
        posterior = posterior.cpu()
        routed, log_home = posterior.argmax(1), posterior.gather(1, home[:, None])[:, 0].clamp_min(SMALLEST).log()
        system = p_system = model.routed(routed.to(x.device), embedding)
    own = model.routed(home.to(system.device), embedding).cpu()
    return Predictions(y, system.argmax(1).cpu(), own.argmax(1), p_system.cpu(), own, routed, log_home)


def evaluate(model: Model, federation: Federation, map: Map = map, full: bool = False) -> dict[str, Any]:
    """All metrics on the federation's test rows, ready for JSON; `full` with `scores`, which take as long as a round of
    a small federation."""
    answers = predictions(model, federation, map)
    metrics = _metrics(answers, federation)
    notes = [model.algorithm.notes_of(private) for private in model.privates]
    shown = {name: max(note[name] for note in notes if name in note) for note in notes for name in note}
    return (with_scores(metrics, answers, federation) if full else metrics) | _components(model, federation) | shown


def predictions(model: Model, federation: Federation, map: Map = map) -> list[Predictions | None]:
    """What is said of each client's test rows, in client order; None where it has none."""
    if federation.test is None or not any(len(part) for part in federation.test):
        raise FedSPMError("this federation has no test rows to evaluate on; give test= or set a larger test_fraction")
    return _by_client(list(map(lambda job: ask(model, *job), _jobs(federation.test))), federation.test)


def with_scores(
    metrics: dict[str, Any], answers: Sequence[Predictions | None], federation: Federation
) -> dict[str, Any]:
    """The metrics with `scores`, of all rows and of every client's. What would be large or take long is left out:
    confusion matrices of the clients, then that of all rows; and all scores of clients, where there are very many."""
    said = {name: each for name, each in zip(federation.names, answers, strict=True) if each is not None}
    size = 2 * len(federation.classes) ** 2
    clients = metrics["clients"]
    if len(said) * len(federation.classes) <= CURVES:
        confusion = (len(said) + 1) * size <= LARGEST
        clients = {name: row | {"scores": _scores(said[name], confusion)} for name, row in clients.items()}
    together = Predictions(
        *(
            None if getattr(one, each.name) is None else torch.cat([getattr(row, each.name) for row in said.values()])
            for one in [next(iter(said.values()))]
            for each in fields(Predictions)
        )  # type: ignore[arg-type]
    )
    return metrics | {"scores": _scores(together, confusion=size <= LARGEST), "clients": clients}


def _scores(said: Predictions, confusion: bool) -> dict[str, Any]:
    return {
        "system": scores(said.y, said.system, said.p_system, confusion),
        "own": scores(said.y, said.own, said.p_own, confusion),
    }


def from_counts(counts: Mapping[str, Tensors], names: Sequence[str], routes: bool) -> dict[str, Any]:
    """Average and routing accuracy from what the sites counted; system accuracy takes other sites' heads."""
    clients: dict[str, dict[str, Any]] = {}
    for i, name in enumerate(names):
        if name in counts and (rows := int(counts[name]["rows"])):
            clients[name] = {"rows": rows, "accuracy": int(counts[name]["right"]) / rows}
            if routes:
                clients[name]["routing_accuracy"] = int(counts[name]["routed"][i]) / rows
    if not clients:
        return {"clients": {}}
    total = sum(row["rows"] for row in clients.values())
    worst = min(clients, key=lambda name: clients[name]["accuracy"])
    metrics: dict[str, Any] = {
        "average_accuracy": sum(int(counts[name]["right"]) for name in clients) / total,
        "worst_client": worst,
        "worst_client_accuracy": clients[worst]["accuracy"],
    }
    if routes:
        routed = {i: counts[name]["routed"] for i, name in enumerate(names) if name in clients}
        metrics |= routing_metrics(routed, names)
    return metrics | {"clients": clients}


def _jobs(parts: Iterable[Part]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(home, x, y) of all rows in client order, in pieces; small clients share one, so that each encoder and each
    client is asked once per piece and not once per client."""
    waiting: list[tuple[Tensor, Tensor, Tensor]] = []
    for i, part in enumerate(parts):
        for x, y in zip(chunks(part.x), chunks(part.y), strict=True):
            if waiting and sum(len(each[2]) for each in waiting) + len(y) > CHUNK:
                yield _together(waiting)
                waiting = []
            if len(y):
                waiting.append((torch.full_like(y, i), x, y))
    if waiting:
        yield _together(waiting)


def _together(pieces: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    if len(pieces) == 1:  # no copy
        return pieces[0]
    home, x, y = (torch.cat(each) for each in zip(*pieces, strict=True))
    return home, x, y


def _by_client(answers: list[Predictions], parts: Sequence[Part]) -> list[Predictions | None]:
    """Pieces in client order, cut into what was said of each client's rows; None where it has none."""
    counts = [len(part) for part in parts]
    cut: dict[str, Sequence[Tensor | None]] = {}
    for each in fields(Predictions):
        said = [getattr(piece, each.name) for piece in answers]
        cut[each.name] = [None] * len(counts) if said[0] is None else torch.cat(said).split(counts)
    rows = [Predictions(**{name: values[i] for name, values in cut.items()}) for i in range(len(counts))]  # type: ignore[arg-type]
    return [row if count else None for row, count in zip(rows, counts, strict=True)]


def _metrics(answers: list[Predictions | None], federation: Federation) -> dict[str, Any]:
    clients: dict[str, dict[str, Any]] = {}
    m = len(federation.names)
    routed: dict[int, Tensor] = {}
    lost_by_routing = lost_by_prediction = 0
    for i, (name, said) in enumerate(zip(federation.names, answers, strict=True)):
        if said is None:
            continue
        right = said.system == said.y
        row: dict[str, Any] = {
            "rows": len(said.y),
            "system_accuracy": _mean(right),
            "accuracy": _mean(said.own == said.y),
        }
        row["balanced_accuracy"] = balanced_accuracy(said.y, said.system)
        row["average_balanced_accuracy"] = balanced_accuracy(said.y, said.own)
        if said.routed is not None:
            at_home = said.routed == i
            row["routing_accuracy"] = _mean(at_home)
            routed[i] = torch.bincount(said.routed, minlength=m)
            lost_by_routing += int((~right & ~at_home).sum())
            lost_by_prediction += int((~right & at_home).sum())
        clients[name] = row
    present = [said for said in answers if said is not None]
    y = torch.cat([said.y for said in present])
    system = torch.cat([said.system for said in present])
    own = torch.cat([said.own for said in present])
    metrics: dict[str, Any] = {
        "system_accuracy": _mean(system == y),
        "average_accuracy": _mean(own == y),
        "balanced_accuracy": balanced_accuracy(y, system),
        "average_balanced_accuracy": balanced_accuracy(y, own),
        "worst_client": min(clients, key=lambda name: clients[name]["accuracy"]),
        "worst_client_accuracy": min(row["accuracy"] for row in clients.values()),
        "log_likelihood": float(torch.cat([_log_own(said) for said in present]).double().mean()),
    }
    if present[0].routed is not None:
        home = torch.cat([said.log_home for said in present if said.log_home is not None])
        metrics |= {
            "predictive_log_likelihood": metrics["log_likelihood"] + float(home.double().mean()),
            "error_from_routing": lost_by_routing / len(y),
            "error_from_prediction": lost_by_prediction / len(y),
            **routing_metrics(routed, federation.names),
        }
    return metrics | {"clients": clients}


def _log_own(said: Predictions) -> Float[Tensor, " n"]:
    """log P_i(y | x) under the rows' own client"""
    return said.p_own.gather(1, said.y[:, None])[:, 0].clamp_min(SMALLEST).log()


def _mean(right: Tensor) -> float:
    return int(right.sum()) / max(1, len(right))


def _components(model: Model, federation: Federation) -> dict[str, float]:
    """Purity and adjusted Rand index of the components inside the clients, where the truth is known."""
    if federation.truth is None or not model.algorithm.has_components:
        return {}
    found = [model.algorithm.components_of(private) for private in model.privates]
    pairs = zip(found, federation.truth.train, strict=True)
    return component_agreement([(component.cpu(), truth) for component, truth in pairs if component is not None])
