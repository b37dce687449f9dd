"""Gradient norms and bridge errors of a model, against finite differences and by hand."""

import json
import shutil

import numpy as np
import pytest
import torch

from commands import fedspm
from fedspm.algorithms import algorithm_named
from fedspm.base.errors import FedSPMError
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.likelihood.diagnostics import Diagnosis, bridge_errors, shown_bridge
from fedspm.likelihood.normalised import normalised
from fedspm.likelihood.profile import exact_q2, gauge_shift, profile_log_el, surrogate_q2
from fedspm.training.loop import begin, one_round
from small import small_settings


@pytest.fixture(scope="module", params=["1x", "cx"])
def trained(request, vectors):
    """In double precision and far enough for eq. 6 to have a solution: (algorithm, shared, privates, data)."""
    block = {"encoder": "mlp", "steps": 10, "batch_size": 300, "momentum": 0.0, "learning_rate": 0.2}
    settings = small_settings(
        components=2, variant=request.param, rounds=30, horizon=10**6, router=block, em={"hold": 30, "server_step": 1.0}
    )
    tiny = torch.nn.Sequential(torch.nn.Linear(6, 2), torch.nn.Tanh())
    algorithm = algorithm_named("fedspm")(settings, Task.of_federation(vectors), {"router": tiny})
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        for number in range(settings.rounds):
            shared = one_round(algorithm, engine, shared, number)
        privates = list(engine.privates.values())
    double = [{name: value.double() for name, value in state.items()} for state in (shared, *privates)]
    return algorithm, double[0], double[1:], [(part.x.double(), part.y) for part in vectors.train]


def test_squared_gradients_are_those_of_finite_differences(trained):
    algorithm, shared, privates, data = trained
    diagnosis = Diagnosis(algorithm, data)
    before = diagnosis.before(shared, privates)
    w, n = before.responsibilities, len(before.responsibilities)
    assert before.line["fixed"] is not None
    names = [*algorithm.router.parameters, "tilt.xi", "tilt.gamma"]

    def values(state):
        ratios = diagnosis.log_ratios(state)
        shift = gauge_shift(ratios, diagnosis._client, w)  # it moves along
        exact = exact_q2(ratios + shift, diagnosis._client, w, 1.0).value
        return np.array([-exact / n, -surrogate_q2(ratios, diagnosis._client, w).value / n])

    squares, h = np.zeros(2), 1e-5
    for name in names:
        flat = shared[name].flatten()
        for k in range(len(flat)):
            ends = []
            for sign in (1, -1):
                moved = flat.clone()
                moved[k] += sign * h
                ends.append(values(shared | {name: moved.view(shared[name].shape)}))
            squares += ((ends[0] - ends[1]) / (2 * h)) ** 2
    assert before.line["fixed"]["gradient"] == pytest.approx(squares[0], rel=1e-5)
    assert before.line["surrogate_gradient"] == pytest.approx(squares[1], rel=1e-5)


def test_the_headline_is_the_profile_at_normalised_gamma_and_its_derivative(trained):
    algorithm, shared, privates, data = trained
    diagnosis = Diagnosis(algorithm, data)
    mixing = np.log(np.stack([private["mixing"].numpy() for private in privates]))
    likelihood = diagnosis._likelihood(shared, privates)

    def value(state):
        found = normalised(diagnosis.log_ratios(state), diagnosis._client, mixing, likelihood)
        return -profile_log_el(found.log_ratio, diagnosis._client, mixing, likelihood).value / len(likelihood)

    line = diagnosis.before(shared, privates).line["normalised"]
    assert line["F"] == pytest.approx(value(shared), rel=1e-8)
    assert line["residual"] < 1e-7 < line["defect"]
    assert line["blocks"]["gamma"] < 1e-12
    square, h = 0.0, 1e-4
    for name in [*algorithm.router.parameters, "tilt.xi"]:
        flat = shared[name].flatten()
        for k in range(len(flat)):
            ends = []
            for sign in (1, -1):
                moved = flat.clone()
                moved[k] += sign * h
                ends.append(value(shared | {name: moved.view(shared[name].shape)}))
            square += ((ends[0] - ends[1]) / (2 * h)) ** 2
    assert line["gradient"] == pytest.approx(square, rel=1e-3)


def test_f_is_the_profile(trained):
    algorithm, shared, privates, data = trained
    diagnosis = Diagnosis(algorithm, data)
    before = diagnosis.before(shared, privates)
    mixing = np.log(np.stack([private["mixing"].numpy() for private in privates]))
    likelihood = diagnosis._likelihood(shared, privates)
    profile = profile_log_el(
        diagnosis.log_ratios(shared) + before.line["shift"], diagnosis._client, mixing, likelihood, 1.0
    )
    assert before.line["fixed"]["F"] == pytest.approx(-profile.value / len(likelihood), rel=1e-10)


def test_nothing_moves_if_the_round_changes_nothing(trained):
    algorithm, shared, privates, data = trained
    line = Diagnosis(algorithm, data).before(shared, privates).after(shared)
    assert line["surrogate_after"] == line["surrogate"]
    assert line["fixed"]["f_after"] == pytest.approx(line["fixed"]["f"], rel=1e-12)


def test_other_methods_cannot_be_diagnosed(vectors):
    algorithm = algorithm_named("fedavg")(small_settings(algorithm="fedavg"), Task.of_federation(vectors))
    with pytest.raises(FedSPMError, match="only fedspm and feddrm"):
        Diagnosis(algorithm, [(part.x, part.y) for part in vectors.train])


def line(round, exact, surrogate, f, f_after, s, s_after):
    fixed = {"gradient": exact, "f": f, "f_after": f_after, "F": 0.0}
    return {
        "round": round,
        "fixed": fixed,
        "raw": None,
        "surrogate_gradient": surrogate,
        "surrogate": s,
        "surrogate_after": s_after,
    }


def test_bridge_errors_by_hand():
    lines = [
        line(0, 4.0, 2.0, 1.0, 0.5, 3.0, 2.0),  # ratio 2; f falls by 0.5, f̃ by 1: δ = 0.5
        line(1, 1.0, 1.0, 0.5, 0.1, 2.0, 1.9),  # ratio 1; f falls by 0.4, f̃ by 0.1: δ = 0
        line(2, 9.0, 1e-20, 0.1, 0.1, 1.9, 1.9),  # ‖∇f̃‖² has vanished: not in Γ₂
        {**line(3, 0, 1.0, 0, 0, 0, 0), "fixed": None},
        line(4, 6.0, 4.0, 0.2, None, 2.0, 1.8),  # ratio 1.5; no solution after the round: nothing to compare
    ]
    found = bridge_errors(lines)
    gamma2 = np.quantile([2, 1, 1.5], 0.95)
    assert found.gamma2 == pytest.approx(gamma2)
    epsilon = [max(4 - gamma2 * 2, 0), 0, 9 - gamma2 * 1e-20, 0]
    np.testing.assert_allclose(found.epsilon, np.cumsum(epsilon) / [1, 2, 3, 4])
    np.testing.assert_allclose(found.delta, np.array([0.5, 0.5, 0.5]) / np.sqrt([1, 2, 3]))
    np.testing.assert_allclose(found.gradient, [4, 2.5, 14 / 3, 5])
    assert shown_bridge(found) == [f"{value:.3g}" for value in (5, gamma2, sum(epsilon) / 4, 0.5 / np.sqrt(3))]
    assert shown_bridge(bridge_errors(lines[-1:]))[3] == "–"
    assert (found.rounds.tolist(), found.compared.tolist(), found.unsolved) == ([1, 2, 3, 5], [1, 2, 3], 1)
    with pytest.raises(FedSPMError, match="raw gauge"):
        bridge_errors(lines, "raw")


def test_delta_does_not_depend_on_how_many_rounds_were_diagnosed():
    """δ̄_T is T^(−1/2) times a sum over all T rounds, of which every k-th was looked at."""
    lines = [line(t, 1.0, 1.0, 1.0, 1.05, 1.0, 1.0) for t in range(400)]  # δ̂ = 0.05 in each
    assert bridge_errors(lines).delta[-1] == pytest.approx(1.0)
    assert bridge_errors(lines[4::5]).delta[-1] == pytest.approx(1.0)


def test_the_commands(tmp_path):
    out = tmp_path / "run"
    small = "--algorithm feddrm --clients 3 --rounds 8 --workers 1 --horizon 1000 --set router.steps=10"
    small += " --set predictor.steps=1 --set predictor.batch_size=16"
    fedspm("train", *small.split(), "--diagnose-every", 2, "--set", "router.momentum=0.5", "--out", out)
    lines = [json.loads(text) for text in (out / "diagnostics.jsonl").read_text().splitlines()]
    assert [each["round"] for each in lines] == [0, 2, 4, 6]
    assert all(each["surrogate_after"] < each["surrogate"] for each in lines)
    shown = fedspm("diagnose", out, "--out", tmp_path / "panels.png").stdout
    assert "at normalised γ" in shown
    assert "fixed" in shown
    assert "raw" in shown
    assert (tmp_path / "panels.png").stat().st_size > 10_000
    fixed, _ = map(json.loads, fedspm("diagnose", out, "--json").stdout.splitlines())
    expected = bridge_errors(lines, "fixed")
    assert (fixed["momentum"], fixed["gauge"], fixed["gamma2"]) == (0.5, "fixed", expected.gamma2)
    assert fixed["gradient"] == expected.gradient.tolist()
    unsolved = tmp_path / "unsolved"  # does not keep the others from their table
    shutil.copytree(out, unsolved)
    bare = [{name: value for name, value in each.items() if name != "normalised"} for each in lines]
    text = "".join(json.dumps({**each, "fixed": None, "raw": None}) + "\n" for each in bare)
    (unsolved / "diagnostics.jsonl").write_text(text)
    assert "all" in fedspm("diagnose", out, unsolved, "--out", tmp_path / "both.svg").stdout
    alone = fedspm("diagnose", unsolved, check=False)
    assert (alone.returncode, "nothing to draw" in alone.stderr, "all" in alone.stdout) == (1, True, True)
    again = tmp_path / "again"  # the same μ: a curve each
    shutil.copytree(out, again)
    fedspm("diagnose", out, again, "--out", tmp_path / "two.svg")
    picture = (tmp_path / "two.svg").read_text()
    assert (str(out) in picture, str(again) in picture) == (True, True)
    refused = fedspm("diagnose", tmp_path, check=False)
    assert refused.returncode == 1


def test_diagnosing_changes_nothing(vectors):
    settings = small_settings(rounds=2)
    algorithm = algorithm_named("fedspm")(settings, Task.of_federation(vectors))
    results = []
    for watched in (False, True):
        with LocalEngine(vectors, seed=0, workers=1) as engine:
            shared = begin(algorithm, engine)
            for number in range(2):
                if watched:
                    Diagnosis(algorithm, engine.data, engine.map).before(shared, list(engine.privates.values()))
                shared = one_round(algorithm, engine, shared, number)
        results.append(shared)
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())
