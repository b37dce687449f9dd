"""Eq. 4 with the multipliers λ = τ/n: the normalisers γ that a served model has, against loops over rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedspm.algorithms import build_algorithm
from fedspm.data.federation import Federation
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.likelihood import solve_multipliers
from fedspm.mixture.normalisers import TRAINED, Occupancy, as_trained, exact_normalisers, occupancy
from fedspm.testing.algorithm_checks import small_federation, train_rounds
from fedspm.training.evaluation import prepare
from fedspm.training.loop import begin
from small import small_settings


def settings(**changes: Any) -> Any:
    return small_settings(**{"em": {"hold": 1, "normalisers": "exact"}, "min_count": 5} | changes)


def prepared(federation: Federation, rounds: int = 3, at_once: int = 1, **changes: Any) -> Any:
    algorithm = build_algorithm(settings(**changes), Task.of_federation(federation))
    with LocalEngine(federation, seed=0, workers=1, clients_at_once=at_once) as engine:
        shared = train_rounds(algorithm, engine, begin(algorithm, engine), 0, rounds)
        return algorithm, shared, prepare(algorithm, engine, shared), engine


def masses(algorithm: Any, shared: Any, federation: Federation) -> tuple[float, np.ndarray]:
    """Σ_j r_j and Σ_j r_j exp(γ_ic + ξ_icᵀ h_c(x_j)) of eq. 4, with r_j of eq. 5 for λ = τ/n, row by row."""
    xi, gamma, tau = (shared[name].double().numpy() for name in ("tilt.xi", "tilt.gamma", "tau"))
    x = algorithm.standardise(shared, torch.cat([part.x for part in federation.train]))
    with torch.no_grad():
        features = algorithm.router(shared, x).double().numpy()
    n, (m, components) = len(features), tau.shape
    total, mass = 0.0, np.zeros((m, components))
    for row in features:
        ratio = np.zeros((m, components))
        inside = 1.0
        for i in range(m):
            for c in range(components):
                ratio[i, c] = np.exp(gamma[i, c] + xi[i, c] @ row[c % len(row)])
                inside += tau[i, c] / n * (ratio[i, c] - 1)
        r = 1 / (n * inside)  # eq. 5
        total += r
        mass += r * ratio
    return total, mass


@pytest.mark.parametrize(
    "changes",
    [{}, {"variant": "cx"}, {"algorithm": "feddrm"}, {"clients_per_round": 2}, {"wire": {"exchanges": 1}}],
    ids=["1x", "cx", "feddrm", "partial", "one exchange"],
)
def test_eq_4_holds_where_a_model_is_evaluated(changes: dict[str, Any]) -> None:
    federation = small_federation()
    algorithm, before, after, _ = prepared(federation, **changes)
    total, mass = masses(algorithm, after, federation)
    assert total == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(mass, 1, atol=1e-6)
    _, untouched = masses(algorithm, before, federation)
    assert np.abs(untouched - 1).max() > 1e-3, "γ as trained satisfied eq. 4 already: nothing was tested"


def test_eq_6_has_the_solution_tau_over_n() -> None:
    federation = small_federation()
    algorithm, _, shared, _ = prepared(federation)
    x = algorithm.standardise(shared, torch.cat([part.x for part in federation.train]))
    with torch.no_grad():
        h = algorithm.router(shared, x).double()
    ratio = torch.einsum("nd,mcd->nmc", h[:, 0], shared["tilt.xi"].double()) + shared["tilt.gamma"].double()
    multipliers = (shared["tau"].double() / shared["tau"].double().sum()).flatten().numpy()
    g = np.exp(ratio.flatten(1).numpy()) - 1
    inside = 1 + g @ multipliers
    np.testing.assert_allclose((g / inside[:, None]).mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(solve_multipliers(g).weights, 1 / (len(g) * inside), rtol=1e-3)


def test_normalised_gamma_is_the_same_however_clients_are_numbered() -> None:
    federation = small_federation()
    turned = replace(
        federation,
        names=federation.names[::-1],
        train=federation.train[::-1],
        test=federation.test and federation.test[::-1],
        truth=None,
    )
    one, other = prepared(federation)[2]["tilt.gamma"], prepared(turned)[2]["tilt.gamma"]
    torch.testing.assert_close(one, other.flip(0), atol=2e-5, rtol=0)


def test_training_goes_on_as_if_nothing_had_been_evaluated() -> None:
    federation = small_federation()
    algorithm, before, after, engine = prepared(federation)
    assert torch.equal(after[TRAINED], before["tilt.gamma"])
    assert "h" not in engine.privates[federation.names[0]]
    assert "trained.gamma" not in algorithm.sent(after)
    assert as_trained(after).keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in as_trained(after).items())


def test_many_clients_at_once_give_the_same_normalisers() -> None:
    federation = small_federation()
    alone, together = (prepared(federation, at_once=count)[2] for count in (1, 3))
    torch.testing.assert_close(alone["tilt.gamma"], together["tilt.gamma"], atol=1e-4, rtol=0)


def test_noise_leaves_gamma_as_it_is() -> None:
    privacy = {"clip": 1.0, "noise": 0.5}
    algorithm, before, after, _ = prepared(small_federation(), privacy=privacy)
    assert "occupy" not in algorithm.steps_in_use()
    assert torch.equal(before["tilt.gamma"], after["tilt.gamma"])


def rows_apart(overlap: float) -> tuple[torch.Tensor, ...]:
    """Six components of three clients, whose rows hardly overlap."""
    generator = torch.Generator().manual_seed(0)
    xi = torch.randn(3, 2, 4, generator=generator, dtype=torch.float64) / overlap
    h = torch.randn(600, 1, 4, generator=generator, dtype=torch.float64)
    tau = torch.tensor([[150.0, 60.0], [100.0, 90.0], [198.0, 2.0]], dtype=torch.float64)
    return xi, tau, h


def asking(xi: torch.Tensor, h: torch.Tensor, here: torch.Tensor, curved: bool = True) -> Any:
    """What the clients would answer, and how often they were asked."""
    asked: list[torch.Tensor] = []

    def ask(gamma: torch.Tensor, tau: torch.Tensor) -> Occupancy:
        asked.append(gamma)
        sums = occupancy(xi, gamma, tau, h)
        return Occupancy(**sums | ({} if curved else {"overlap": None}), here=here)

    return ask, asked


ALL = torch.ones(3, dtype=torch.bool)


@pytest.mark.parametrize("curved", [True, False], ids=["newton", "extrapolated"])
@pytest.mark.parametrize("overlap", [2.0, 0.5, 0.2])
def test_few_exchanges_are_needed_where_components_hardly_overlap(overlap: float, curved: bool) -> None:
    xi, tau, h = rows_apart(overlap)
    ask, asked = asking(xi, h, ALL, curved)
    assert exact_normalisers(torch.zeros(3, 2), tau, ALL, ask).defect < 1e-7
    assert len(asked) <= (14 if curved else 40)


def test_clients_that_do_not_answer_are_in_no_sum_and_move_along() -> None:
    xi, tau, h = rows_apart(2.0)
    here, h = torch.tensor([True, True, False]), h[:400]
    found = exact_normalisers(torch.zeros(3, 2), tau, ALL, asking(xi, h, here)[0])
    sums = occupancy(xi, found.gamma, tau * here[:, None], h)
    torch.testing.assert_close(sums["shares"][:2] / tau[:2], torch.ones(2, 2).double(), atol=1e-6, rtol=0)
    assert float(sums["baseline"]) == pytest.approx(1)
    assert float(found.gamma[2, 0]) == pytest.approx(float(found.gamma[2, 1]))  # as before: only moved along
