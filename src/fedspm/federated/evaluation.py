"""System, average and routing accuracy, the same way for every algorithm.

`system_accuracy` and `balanced_accuracy` are of the system's answers to everybody's test rows; `average_accuracy`,
`average_balanced_accuracy`, `worst_client_accuracy` and, in a client's row, `accuracy` and `balanced_accuracy` are of
the clients' own answers. Balanced accuracy is the mean of the classes' recalls: guessing the commonest is no help.
`log_likelihood` is the mean of log P_i(y | x) under the rows' own clients, and `predictive_log_likelihood` that of
log P(i, y | x) = log P(i | x) + log P_i(y | x), which does not depend on the gauge of the density ratios.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
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
from fedspm.nn.sgd import CHUNK, chunks

NAMED = 8  # rows that an error names
SHOWN = 64  # clients up to which all of the routing confusion is kept
MISTAKES = 200  # … and pairs of clients that are kept beyond
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

    def votes(self, embedding: Tensors) -> Float[Tensor, "n k"]:
        """Shares of the clients' votes for each class, one vote per client: a method that cannot route is evaluated
        by majority voting, as in the paper."""
        clients = self.algorithm.task.clients
        votes: Tensor | int = 0
        for i in range(clients):
            votes = votes + one_hot(self.local(i, embedding).argmax(1), self.algorithm.task.classes)
        return torch.as_tensor(votes) / clients

    def answer(self, embedding: Tensors) -> tuple[Float[Tensor, "n m"] | None, Float[Tensor, "n k"]]:
        """The posterior over clients and the routed clients' class probabilities; without routing None and `votes`."""
        posterior = self.posterior(embedding)
        if posterior is None:
            return None, self.votes(embedding)
        return posterior, self.routed(posterior.argmax(1), embedding)

    def probabilities(self, embedding: Tensors) -> Float[Tensor, "n k"]:
        """Class probabilities: of the client that a row is routed to, or the mean over all clients without routing.

        In that mean every client weighs the same, as in `votes`: nothing says that a large client is the right one.
        """
        posterior = self.posterior(embedding)
        if posterior is not None:
            return self.routed(posterior.argmax(1), embedding)
        clients = self.algorithm.task.clients
        total = self.local(0, embedding)
        for i in range(1, clients):
            total = total + self.local(i, embedding)
        return total / clients


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
    log_own: Float[Tensor, " n"]  # log P_i(y | x) under the row's own client
    routed: Int[Tensor, " n"] | None
    log_home: Float[Tensor, " n"] | None  # log P(i | x) of the row's own client


@torch.no_grad()
def ask(model: Model, home: Int[Tensor, " n"], x: Tensor, y: Tensor) -> Predictions:
    """`home` are the rows' own clients."""
    embedding = model.embed(x)
    posterior, system = model.answer(embedding)
    own = model.routed(home.to(system.device), embedding).cpu()
    log_own = own.gather(1, y[:, None])[:, 0].clamp_min(SMALLEST).log()
    routed = log_home = None
    if posterior is not None:
        posterior = posterior.cpu()
        routed, log_home = posterior.argmax(1), posterior.gather(1, home[:, None])[:, 0].clamp_min(SMALLEST).log()
    return Predictions(y, system.argmax(1).cpu(), own.argmax(1), log_own, routed, log_home)


def evaluate(model: Model, federation: Federation, map: Map = map) -> dict[str, Any]:
    """All metrics on the federation's test rows, ready for JSON."""
    if federation.test is None or not any(len(part) for part in federation.test):
        raise FedSPMError("this federation has no test rows to evaluate on; give test= or set a larger test_fraction")
    answers = list(map(lambda job: ask(model, *job), _jobs(federation.test)))
    notes = [model.algorithm.notes_of(private) for private in model.privates]
    shown = {name: max(note[name] for note in notes if name in note) for note in notes for name in note}
    return _metrics(_by_client(answers, federation.test), federation) | _components(model, federation) | shown


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
        row["system_balanced_accuracy"] = balanced_accuracy(said.y, said.system)
        row["balanced_accuracy"] = balanced_accuracy(said.y, said.own)
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
        "log_likelihood": float(torch.cat([said.log_own for said in present]).double().mean()),
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


def routing_metrics(routed: Mapping[int, Int[Tensor, " m"]], names: Sequence[str]) -> dict[str, Any]:
    """Routing accuracy and where rows went: m² counts of up to `SHOWN` clients, beyond that the commonest mistakes."""
    total = sum(int(row.sum()) for row in routed.values())
    accuracy = sum(int(row[i]) for i, row in routed.items()) / max(1, total)
    if (m := len(names)) <= SHOWN:
        confusion = [routed[i].tolist() if i in routed else [0] * m for i in range(m)]
        return {"routing_accuracy": accuracy, "routing_confusion": confusion}
    pairs = ((row, i, j) for i, row in routed.items() for j in row.nonzero()[:, 0].tolist() if j != i)
    wrong = [{"client": names[i], "routed_to": names[j], "rows": int(row[j])} for row, i, j in pairs]
    wrong.sort(key=itemgetter("rows"), reverse=True)
    others = sum(each["rows"] for each in wrong[MISTAKES:])
    return {"routing_accuracy": accuracy, "routing_mistakes": wrong[:MISTAKES], "other_routing_mistakes": others}


def balanced_accuracy(y: Int[Tensor, " n"], predicted: Int[Tensor, " n"]) -> float:
    """Mean of the recalls of the classes that occur."""
    classes = int(max(y.max(), predicted.max())) + 1
    total = torch.bincount(y, minlength=classes)
    right = torch.bincount(y[y == predicted], minlength=classes)
    return float((right / total)[total > 0].mean())


def _mean(right: Tensor) -> float:
    return int(right.sum()) / max(1, len(right))


def _components(model: Model, federation: Federation) -> dict[str, float]:
    """Purity and adjusted Rand index of the components inside the clients, where the truth is known."""
    if federation.truth is None or not model.algorithm.has_components:
        return {}
    from sklearn.metrics import adjusted_rand_score  # slow to import, and a site does not need it

    pairs = [
        (component.cpu(), truth)
        for private, truth in zip(model.privates, federation.truth.train, strict=True)
        if (component := model.algorithm.components_of(private)) is not None
    ]
    if not pairs:
        return {}
    n = sum(len(truth) for _, truth in pairs)
    purity = sum(purity_count(component, truth) for component, truth in pairs) / n
    rand = sum(len(truth) * adjusted_rand_score(truth.numpy(), component.numpy()) for component, truth in pairs) / n
    return {"component_purity": purity, "component_rand_index": rand}


def purity_count(component: Int[Tensor, " n"], truth: Int[Tensor, " n"]) -> int:
    """Rows that share their component's commonest true component."""
    commonest = [int(torch.bincount(truth[component == c]).max()) for c in component.unique().tolist()]
    return sum(commonest)
