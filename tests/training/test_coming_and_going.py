"""What follows when clients come and go: the sketch, the tables of the others, the tilt of a newcomer."""

import numpy as np
import pytest
import torch
from test_onboarding import once, place  # noqa: F401

from fedspm import Federation
from fedspm.algorithms.fedspm import FedSPM
from fedspm.engines.local import LocalEngine
from fedspm.federated.client import Client
from fedspm.federated.task import Task
from fedspm.mixture import onboarding
from fedspm.mixture.sketch import TABLES, Sketch, baseline_gradient
from fedspm.training.membership import onboard, remove
from small import small_settings


def tables(clients, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        "tilt.xi": torch.randn(clients, 2, 3, generator=draw).double(),
        "tilt.gamma": torch.randn(clients, 2, generator=draw).double(),
        "tau": torch.rand(clients, 2, generator=draw).double() * 9,
    }


def total(shared, point):
    """D = Σ_ic τ_ic exp(γ_ic + ξ_icᵀ h_c)"""
    xi, gamma, tau = (shared[name].numpy() for name in TABLES)
    return sum(
        tau[i, c] * np.exp(gamma[i, c] + xi[i, c] @ point[c]) for i in range(len(xi)) for c in range(xi.shape[1])
    )


def test_r_follows_when_clients_come_and_go():
    """Clusters of a single row have Σ r = 1 / D there, whoever is there."""
    more = tables(3)
    few = {name: value[:2] for name, value in more.items()}
    centre = torch.randn(1, 4, 2, 3, generator=torch.Generator().manual_seed(1)).double()
    mass = {
        clients: [1 / total(shared, point.numpy()) for point in centre[0]] for clients, shared in ((2, few), (3, more))
    }
    for before, after, here, there in ((few, more, 2, 3), (more, few, 3, 2)):
        sketch = Sketch(torch.ones(1, 4).double(), torch.tensor([mass[here]]), centre)
        np.testing.assert_allclose(sketch.moved(before, after).mass[0], mass[there], rtol=1e-10)


def test_a_client_in_the_middle_leaves(once, tmp_path):  # noqa: F811
    less = remove(once, "south", tmp_path / "less", "x")
    before, after = once.latest(), less.latest()
    for name in TABLES:
        assert torch.equal(after.shared[name], before.shared[name][[0, 2]])
    assert list(after.privates) == ["north", "west"]
    assert torch.equal(less.sketch()["centre"], once.sketch()["centre"][[0, 2]])


def test_the_sketch_has_the_newcomer_and_knows_of_it(once, place, tmp_path):  # noqa: F811
    """Σ r over the clusters of a client is Σ_j 1 / D(x_j) over its rows, D with the newcomer in it."""
    done = onboard(once, "east", place / "east.npz", tmp_path / "more", "x")
    model = done.run.model()
    shared = {name: model.shared[name].double() for name in TABLES}
    h = model.embed(done.run.federation().train[-1].x)["router"].detach().double().expand(-1, 2, -1).numpy()
    sketch = done.run.sketch()
    assert sketch["count"][-1].sum() == len(h)
    np.testing.assert_allclose(sketch["mass"][-1].sum(), sum(1 / total(shared, row) for row in h), rtol=1e-3)


def test_a_newcomer_that_h_tells_apart_has_a_tilt_all_the_same(vectors):
    """Where Q̃₂ less the ridge is largest, its gradient by ξ is RIDGE · mean(h²) ξ for each of its rows."""
    algorithm = FedSPM(small_settings(), Task.of_federation(vectors))
    draw = torch.Generator().manual_seed(0)
    own, others = torch.randn(50, 1, 4, generator=draw).double() + 1, torch.randn(300, 1, 4, generator=draw).double()
    own_total, others_total = torch.zeros(50).double(), torch.zeros(300).double()
    responsibilities = torch.full((50, 2), 0.5).double()
    start = {"tilt.xi": torch.zeros(2, 4).double(), "tilt.gamma": torch.full((2,), -4.0).double()}

    def asked(tilt):
        return baseline_gradient(tilt, others, others_total, torch.ones(300).double())

    found = start
    for _ in range(5):
        found = algorithm.onboarding.fitted_tilt(
            found, torch.full((2,), 25.0).double(), responsibilities, own, own_total, asked
        )
    gradient = np.zeros((2, 4))
    for rows, mine in ((own, 1), (others, 0)):
        for h in rows[:, 0].numpy():
            score = [25 * np.exp(float(found["tilt.gamma"][c]) + found["tilt.xi"][c].numpy() @ h) for c in range(2)]
            for c in range(2):
                gradient[c] += (0.5 * mine - score[c] / (1 + sum(score))) * h / 50
    ridge = 2e-4 * float(own.square().mean())
    np.testing.assert_allclose(gradient, ridge * found["tilt.xi"].numpy(), rtol=0.05, atol=1e-7)
    assert onboarding.RIDGE > 0


# -- clients whose rows are not in the sums --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alike():
    """Twenty clients with nine rows, one with sixty and a newcomer with sixty, all of one distribution, and tables that
    say so; the newcomer's share of the rows is 60 / 300."""
    random = np.random.default_rng(0)

    def rows(n):
        return random.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 2

    sizes = [9] * 20 + [60]
    federation = Federation.from_arrays({f"c{i:02}": rows(n) for i, n in enumerate(sizes)})
    algorithm = FedSPM(small_settings(components=1, min_count=10), Task.of_federation(federation))
    shared = {"input.mean": torch.zeros(3), "input.scale": torch.ones(3), **algorithm.predictor.initial()}
    shared |= algorithm.router.initial() | {
        "tilt.xi": torch.zeros(21, 1, 4),
        "tilt.gamma": torch.zeros(21, 1),
        "tau": torch.tensor(sizes).float()[:, None],
    }
    x, y = map(torch.from_numpy, rows(60))
    with LocalEngine(federation, seed=0, workers=1) as engine:
        engine.begin_round(0)
        engine.init_private(algorithm)
        yield algorithm, shared, engine, Client("new", 21, x, y, {}, 0, 0)


def share_of(algorithm, shared, row):
    """Of queries of that distribution, with the newcomer"""
    x = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))
    h = algorithm.onboarding.all_features(algorithm.router, shared, x)[:, 0]
    others = shared["tau"][:, 0].log().expand(2000, -1)  # their tilts are nothing
    own = h @ row["tilt.xi"][0] + row["tilt.gamma"] + row["tau"].log()
    return float(torch.softmax(torch.cat([others, own[:, None]], 1), 1)[:, -1].mean())


@pytest.mark.parametrize("by_sketch", [False, True])
def test_a_newcomer_is_not_larger_where_many_are_too_small_to_speak(alike, by_sketch):
    algorithm, shared, engine, new = alike
    sketch = algorithm.onboarding.sketch(shared, engine)
    assert sketch.here.tolist() == [False] * 20 + [True]
    assert float(sketch.mass.sum()) == pytest.approx(1)
    row, _ = algorithm.onboarding.admit(
        new, shared, sketch.others() if by_sketch else algorithm.onboarding.everybody(shared, engine)
    )
    assert share_of(algorithm, shared, row) == pytest.approx(60 / 300, abs=0.03)


def test_nor_where_somebody_did_not_answer(alike):
    algorithm, shared, engine, new = alike
    talkative = FedSPM(small_settings(components=1, min_count=1), algorithm.task)

    class Without:
        round = 0

        def __call__(self, step, shared, **more):
            replies = engine(step, shared, **more)
            for i in range(15):
                del replies.rows[f"c{i:02}"]
            return replies

    sketch = talkative.onboarding.sketch(shared, Without())
    assert int(sketch.here.sum()) == 6
    assert float(sketch.mass.sum()) == pytest.approx(1)
    row, _ = talkative.onboarding.admit(new, shared, sketch.others())
    assert share_of(talkative, shared, row) == pytest.approx(60 / 300, abs=0.03)


def test_a_sketch_without_anybody_stays_one(alike):
    algorithm, shared, engine, _ = alike
    nobody = FedSPM(small_settings(components=1, min_count=100), algorithm.task).onboarding.sketch(shared, engine)
    assert not nobody.here.any()
    assert not nobody.mass.isnan().any()
