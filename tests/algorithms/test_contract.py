"""Every method keeps the contract, and the checks notice one that does not."""

import pytest
import torch

from fedspm.algorithms import ALGORITHMS
from fedspm.algorithms.fedavg import FedAvg
from fedspm.base.errors import Refused
from fedspm.federated.replies import Mean, PerClient
from fedspm.federated.steps import step
from fedspm.federated.uploads import Sum, Update
from fedspm.testing import CHECKS, check_algorithm

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")
pytest.importorskip("opacus", reason="pip install 'fedspm[privacy]'")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_method_keeps_the_contract(name, check):
    check_algorithm(ALGORITHMS[name], only=check)


class Forgetful(FedAvg):
    """Keeps state outside of what it returns."""

    def server_round(self, shared, exchange):
        self.calls = getattr(self, "calls", 0) + 1
        return {name: value * (1 + 1e-3 * self.calls) for name, value in super().server_round(shared, exchange).items()}


class Numbered(FedAvg):
    """Depends on how clients are numbered."""

    def update(self, client, shared):
        reply, private = super().update(client, shared)
        weight, tensors = reply.as_sent()
        return Mean(weight * (1 + client.index), **tensors), private


class Entangled(FedAvg):
    """Lets the rows of a batch see each other."""

    def loss(self, w, batch, shared):
        return super().loss(w, batch, shared) * (1 + batch.y.float().mean())


class Leaking(FedAvg):
    """Declares sums, and sends one number per row."""

    def server_round(self, shared, exchange):
        exchange(self.peek, shared)
        return super().server_round(shared, exchange)

    @step(uploads={"first": Sum(apart=True)})
    def peek(self, client, shared):
        return PerClient.of(client.name, first=client.x[:, 0]), client.private


class Copying(Leaking):
    """Declares sums, and sends five rows."""

    @step(uploads={"first": Sum()})
    def peek(self, client, shared):
        return Mean(1, first=client.x[:5]), client.private


class Repeating(FedAvg):
    """Asks twice a round for a step that is declared for once."""

    def server_round(self, shared, exchange):
        return super().server_round(super().server_round(shared, exchange), exchange)


class Late(FedAvg):
    """Asks in every round for a step that is declared for the start."""

    def server_round(self, shared, exchange):
        exchange(self.describe, {})
        return super().server_round(shared, exchange)


class Unused(FedAvg):
    """Asks for a step that it says these settings do not use."""

    @step(uploads={"predictor": Update(), "head": Update()}, used=lambda algorithm: False)
    def update(self, client, shared):
        return super().update(client, shared)


class Undeclared(FedAvg):
    def update(self, client, shared):
        reply, private = super().update(client, shared)
        weight, tensors = reply.as_sent()
        return Mean(weight, **tensors, rows=client.x[:5]), private


@pytest.mark.parametrize(
    ("method", "check"),
    [
        (Forgetful, "resumes"),
        (Numbered, "renumbering"),
        (Entangled, "clients_at_once"),
        (Leaking, "declarations"),
        (Copying, "declarations"),
        (Repeating, "declarations"),
        (Unused, "declarations"),
        (Late, "sites"),
    ],
)
def test_a_method_that_breaks_the_contract_is_told_so(method, check):
    with pytest.raises(AssertionError, match=f"{method.__name__} fails check '{check}'"):
        check_algorithm(method)
    assert "method-under-test" not in ALGORITHMS


def test_what_is_not_declared_stops_every_check():
    with pytest.raises(Refused, match="'rows' is not declared to leave a client in step update"):
        check_algorithm(Undeclared)


def test_a_noised_vector_that_nobody_counts_is_noticed(monkeypatch):
    monkeypatch.setattr("fedspm.engines.local.Releases.add", lambda *_: None)
    with pytest.raises(AssertionError, match="no noised vector is counted"):
        check_algorithm(FedAvg, only="privacy")
    assert torch.get_num_threads() >= 1
