"""What is said about privacy: the library's ε for what really left, and nothing for what has no noise."""

import json
import math

import pytest

from fedspm.algorithms import ALGORITHMS, build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.federated.accountant import epsilon, not_covered, sentence, spent
from fedspm.federated.task import Task
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.runs.manifest import manifest
from fedspm.training.loop import train
from small import StopAfter, small_settings

accountants = pytest.importorskip("opacus.accountants", reason="pip install 'fedspm[privacy]'")

NOISE = {"clip": 1.0, "noise": 4.0}


def algorithm_with(federation, **changes):
    settings = small_settings(**{"privacy": NOISE, **changes})
    return build_algorithm(settings, Task.of_federation(federation))


def test_epsilon_is_the_librarys_and_grows():
    accountant = accountants.RDPAccountant()
    found = []
    for count in range(1, 41):
        accountant.step(noise_multiplier=2.0, sample_rate=1.0)  # noise of 4 S on changes that lie up to 2 S apart
        found.append(epsilon(4.0, count, 1e-5))
        assert found[-1] == accountant.get_epsilon(1e-5)
    assert found == sorted(found)
    assert found[0] < found[-1]
    orders = accountants.RDPAccountant.DEFAULT_ALPHAS
    by_hand = (10 * a / 8 + math.log1p(-1 / a) - math.log(1e-5 * a) / (a - 1) for a in orders)
    assert found[9] == pytest.approx(min(by_hand))


@pytest.mark.parametrize(
    ("changes", "exact"),
    [
        ({}, ["cluster", "describe", "evaluate", "moments"]),
        ({"em": {"start": "random"}}, ["describe", "evaluate"]),
        ({"algorithm": "feddrm"}, ["describe", "evaluate"]),
        ({"em": {"start": "random"}, "min_count": 1000}, ["evaluate"]),
        ({"algorithm": "fedavg", "min_count": 1000}, ["evaluate"]),
        ({"algorithm": "fedgmm", "em": {"start": "random"}}, ["describe", "evaluate", "weigh"]),
        ({"algorithm": "cluster-fl", "em": {"start": "random"}}, ["describe", "evaluate", "update (which model)"]),
    ],
)
def test_what_leaves_without_noise_is_named(vectors, changes, exact):
    algorithm = algorithm_with(vectors, **changes)
    assert not_covered(algorithm) == exact
    assert exact[-1] in sentence(spent(algorithm, 1))


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
