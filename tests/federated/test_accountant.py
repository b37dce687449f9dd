"""What is said about privacy: the exact ε for what really left, and nothing for what has no noise."""

import json
import math
import warnings

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from fedspm.algorithms import ALGORITHMS, build_algorithm
from fedspm.base.errors import FedSPMError, TrainingFailed
from fedspm.engines.local import LocalEngine
from fedspm.federated.accountant import epsilon, gaussian_epsilon, not_covered, sentence, separation, spent
from fedspm.federated.settings import Privacy
from fedspm.federated.task import Task, public_input
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.runs.manifest import manifest
from fedspm.training.loop import begin, train
from small import StopAfter, small_settings

NOISE = {"clip": 1.0, "noise": 4.0}


def algorithm_with(federation, **changes):
    settings = small_settings(**{"privacy": NOISE, **changes})
    return build_algorithm(settings, Task.of_federation(federation))


def opacus(kind, noise, count, delta, **options):
    accountant = getattr(pytest.importorskip("opacus.accountants"), kind)()
    accountant.history = [(noise / 2, 1.0, count)]  # noise of z S on changes that lie up to 2 S apart
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return accountant.get_epsilon(delta, **options)


def integrated(mu, epsilon):
    """δ(ε) as it is defined: ∫ max(0, p(x) − e^ε q(x)) dx of N(μ, 1) against N(0, 1)."""

    def excess(x):
        return max(0.0, norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x))

    return quad(excess, epsilon / mu + mu / 2, epsilon / mu + mu / 2 + 40, epsabs=0, limit=200)[0]


@pytest.mark.parametrize(("noise", "count", "delta"), [(8, 41, 1e-5), (4, 10, 1e-5), (2, 3, 1e-6), (20, 5, 1e-3)])
def test_epsilon_is_that_of_one_gaussian_mechanism(noise, count, delta):
    """k releases with noise z/2 are one with μ = 2 √k / z; its δ at ε is an integral."""
    found = epsilon(noise, count, delta)
    assert integrated(2 * math.sqrt(count) / noise, found) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(("noise", "count", "delta"), [(8, 41, 1e-5), (2, 60, 1e-5), (0.5, 3, 1e-6), (100, 1, 1e-5)])
def test_epsilon_is_below_renyis_bound_and_near_the_numerical_one(noise, count, delta):
    found, bound = epsilon(noise, count, delta), opacus("RDPAccountant", noise, count, delta)
    assert found < bound
    if noise < 50:
        assert bound < 1.1 * found
        assert found == pytest.approx(opacus("PRVAccountant", noise, count, delta, eps_error=0.02), abs=0.03)


def test_epsilon_grows_with_releases_and_shrinks_with_noise():
    many = [epsilon(4.0, count, 1e-5) for count in range(1, 40)]
    assert many == sorted(many)
    assert [epsilon(z, 10, 1e-5) for z in (0.01, 0.1, 1, 10, 100, 1e6)] == sorted(
        (epsilon(z, 10, 1e-5) for z in (0.01, 0.1, 1, 10, 100, 1e6)), reverse=True
    )
    assert epsilon(4.0, 0, 1e-5) == 0
    assert math.isfinite(epsilon(1e-3, 1000, 1e-5))
    assert gaussian_epsilon(math.sqrt(separation(4.0, 3) + separation(2.0, 1)), 1e-5) > epsilon(4.0, 3, 1e-5)


@pytest.mark.parametrize("name", ["fedspm", "feddrm", "fedem", "fedavg", "fedavg-ft", "ditto", "fedbabu", "fedper"])
def test_nothing_leaves_without_noise_where_there_is_noise(vectors, name):
    algorithm = algorithm_with(vectors, algorithm=name)
    assert not_covered(algorithm) == []
    assert sentence(spent(algorithm, 1)).endswith("nothing left without noise")


@pytest.mark.parametrize(
    ("name", "why"),
    [("fedgmm", "'mass' of step 'weigh' would leave without noise"), ("cluster-fl", "which model a client has chosen")],
)
def test_a_method_that_sends_anything_without_noise_is_refused_with_noise(vectors, name, why):
    with pytest.raises(TrainingFailed, match=f"privacy.noise: .*{why}"):
        algorithm_with(vectors, algorithm=name)


def test_without_noise_what_no_epsilon_covers_is_named(vectors):
    algorithm = algorithm_with(vectors, privacy={"clip": 1.0})
    assert not_covered(algorithm) == ["cluster", "describe", "evaluate", "moments"]
    assert "cluster, describe, evaluate, moments" in sentence(spent(algorithm, 0))


@pytest.mark.parametrize(
    ("given", "mean", "scale"),
    [({}, 0.0, 1.0), ({"public_mean": [2.0], "public_scale": [4.0]}, 2.0, 4.0)],
)
def test_under_noise_rows_are_standardised_by_public_numbers(vectors, given, mean, scale):
    algorithm = algorithm_with(vectors, privacy=NOISE | given)
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
    assert torch.equal(shared["input.mean"], torch.full((6,), mean))
    assert torch.equal(shared["input.scale"], torch.full((6,), scale))
    with pytest.raises(FedSPMError, match=r"privacy.public_mean has 2 numbers for 6 features; give one, or one for ea"):
        public_input(algorithm.task, Privacy(public_mean=(1.0, 2.0)))


def test_clipping_alone_claims_nothing(vectors):
    found = spent(algorithm_with(vectors, privacy={"clip": 1.0}), 0)
    assert found["epsilon"] is None
    assert "no ε holds" in sentence(found)


def test_noise_needs_a_clip():
    with pytest.raises(FedSPMError, match=r"^privacy: noise is in units of clip; set privacy\.clip as well$"):
        resolve({"privacy": {"noise": 1.0}})


def test_a_resumed_run_counts_on_and_reports_the_same(vectors, tmp_path):
    block = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 2}
    config = resolve(
        {"components": 2, "rounds": 4, "eval_every": 2, "workers": 1, "privacy": NOISE, "em": {"start": "random"}},
        {"predictor": block, "router": block},
    )
    lines = []
    for name, stop in (("whole", None), ("stopped", 3)):
        algorithm = ALGORITHMS["fedspm"](config, Task.of_federation(vectors))
        run = Run.create(tmp_path / name, config, manifest(vectors, algorithm, "test"))
        train(config, algorithm, vectors, run=run, callbacks=[StopAfter(stop)])
        if stop:
            train(config, algorithm, vectors, run=run, checkpoint=run.latest())
        lines.append([{key: line[key] for key in ("round", "system_accuracy", "privacy")} for line in run.metrics()])
    assert lines[0] == lines[1]
    assert [line["privacy"]["releases"] for line in lines[0]] == [4, 8]
    assert lines[0][1]["privacy"]["epsilon"] == epsilon(4.0, 8, 1e-5)
    assert json.dumps(lines[0])


def test_a_run_of_before_replies_were_counted_is_not_gone_on_with(vectors, tmp_path):
    config = resolve({"components": 2, "rounds": 2, "workers": 1, "privacy": NOISE, "em": {"start": "random"}})
    algorithm = ALGORITHMS["fedspm"](config, Task.of_federation(vectors))
    run = Run.create(tmp_path / "run", config, manifest(vectors, algorithm, "test"))
    train(config, algorithm, vectors, run=run, callbacks=[StopAfter(1)])
    state = next(run.path.glob("checkpoints/round-00001/state.json"))
    known = json.loads(state.read_text())
    assert known.pop("releases") == dict.fromkeys(vectors.names, 2)
    del known["state_sha256"]  # which runs of that time had not either
    state.write_text(json.dumps(known))
    with pytest.raises(FedSPMError, match="did not count noised replies, so no ε is known; train anew"):
        train(config, algorithm, vectors, run=run, checkpoint=run.latest())
