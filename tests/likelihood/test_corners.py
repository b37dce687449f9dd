"""Multipliers in units, components without rows, references, summaries, gauges: where a slip would not show."""

import numpy as np
import pytest
from scipy import stats
from test_diagnostics import trained  # noqa: F401
from test_drm import fit, quadratic, samples  # noqa: F401

from fedspm.base.errors import FedSPMError
from fedspm.likelihood import fit_drm, solve_multipliers
from fedspm.likelihood.diagnostics import Diagnosis, bridge_errors
from fedspm.likelihood.profile import accumulation_factors, exact_q2, gauge_shift, profile_log_el, surrogate_q2
from fedspm.report.diagnosis import accumulation, bridge_rows
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run

# -- multipliers -------------------------------------------------------------------------------------------------------


def test_the_shortest_multipliers_are_shortest_in_the_units_of_g():
    """A column beside eight times itself: λ_0 + 8 λ_1 is settled, and the shortest such λ lies along (1, 8)."""
    g = np.random.default_rng(0).normal(size=(50, 1))
    (alone,) = solve_multipliers(g).multipliers
    both = solve_multipliers(np.c_[g, 8 * g]).multipliers
    np.testing.assert_allclose(both, alone * np.array([1, 8]) / 65, rtol=1e-9)


def test_a_ratio_of_zero_has_a_log():
    ratio = np.random.default_rng(0).uniform(0.2, 2, size=(40, 2))
    ratio[3, 1] = 0
    with np.errstate(divide="ignore"):
        found = solve_multipliers(log_ratio=np.log(ratio))
    np.testing.assert_allclose(found.multipliers, solve_multipliers(ratio - 1).multipliers, rtol=1e-9)


# -- profile -----------------------------------------------------------------------------------------------------------


def absent(share):
    """Two clients with two components; of the last component each of the second client's 30 rows has this share."""
    random = np.random.default_rng(0)
    client = np.repeat([0, 1], 30)
    log_ratio = 0.3 * random.normal(size=(60, 2, 2))
    log_ratio[:, 1, 1] = 2000.0  # nothing ties it to the data, and its own constraint could not be met
    responsibilities = np.full((60, 2), 0.5)
    responsibilities[30:] = [1 - share, share]
    return log_ratio, client, responsibilities


@pytest.mark.parametrize(("share", "least"), [(0.0, 0.0), (0.02, 1.0)])
def test_a_component_without_rows_has_no_constraint(share, least):
    log_ratio, client, responsibilities = absent(share)
    alone = solve_multipliers(log_ratio=log_ratio.reshape(60, 4)[:, :3])
    exact = exact_q2(log_ratio, client, responsibilities, least)
    tilted = sum(responsibilities[j, c] * log_ratio[j, client[j], c] for j in range(60) for c in range(2))
    mixing = np.log([[0.5, 0.5], [0.5, 0.5]])
    with np.errstate(divide="ignore"):
        likelihood = np.log(responsibilities) - log_ratio[np.arange(60), client]  # w is the posterior
    profile = profile_log_el(log_ratio, client, mixing, likelihood, least)
    assert exact.value == pytest.approx(tilted + alone.sum_log_weights + 60 * np.log(60), rel=1e-12)
    for found in (exact, profile):
        np.testing.assert_allclose(found.solution.multipliers, [*alone.multipliers, 0], rtol=1e-9)
        np.testing.assert_allclose(found.pull[:, 1, 1], [0] * 30 + [share] * 30)


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_row_of_nobody_gets_a_sentence(wrong):
    log_ratio, client, responsibilities = absent(0.0)
    client[-1] = wrong
    with pytest.raises(FedSPMError, match="expected 0 to 1"):
        surrogate_q2(log_ratio, client, responsibilities)


def test_an_absent_component_may_be_impossible():
    log_ratio, client, responsibilities = absent(0.0)
    alone = exact_q2(log_ratio, client, responsibilities), surrogate_q2(log_ratio, client, responsibilities)
    log_ratio[:, 1, 1] = -np.inf
    none = exact_q2(log_ratio, client, responsibilities), surrogate_q2(log_ratio, client, responsibilities)
    assert [each.value for each in none] == pytest.approx([each.value for each in alone], rel=1e-12)


def test_what_is_given_may_be_lists_and_is_checked():
    log_ratio, client, w = absent(0.1)
    log_ratio[:, 1, 1] = 0.2 * np.random.default_rng(1).normal(size=60)
    mixing, likelihood = np.log(np.full((2, 2), 0.5)), np.log(np.full((60, 2), 0.3))
    for measure in (exact_q2, surrogate_q2):
        as_lists = measure(log_ratio.tolist(), client.astype(float).tolist(), w.tolist())
        assert as_lists.value == measure(log_ratio, client, w).value
    assert gauge_shift(log_ratio.tolist(), client.tolist(), w.tolist()) == gauge_shift(log_ratio, client, w)
    wrong = [
        (lambda: surrogate_q2(log_ratio, client, -w), "none of them negative"),
        (lambda: surrogate_q2(log_ratio, client, w * np.nan), "finite"),
        (lambda: surrogate_q2(log_ratio, client, 0 * w), "some positive"),
        (lambda: exact_q2(log_ratio, client + 0.5, w), "expected 0 to 1"),
        (lambda: exact_q2(log_ratio, client, w, least=100), "no component has more than 100 rows"),
        (lambda: gauge_shift(log_ratio, client, w[:, :1]), "have shapes"),
        (lambda: profile_log_el(log_ratio, client, mixing[0], likelihood), "log_mixing has shape"),
        (lambda: profile_log_el(log_ratio, client, np.r_[mixing, mixing], likelihood), "log_mixing has shape"),
        (lambda: profile_log_el(log_ratio, client, mixing, likelihood - np.inf), "row 0 has density zero"),
        (lambda: accumulation_factors(0.9, -1), "at least 0"),
        (lambda: bridge_errors([], "fix"), "no gauge 'fix'"),
    ]
    for act, sentence in wrong:
        with pytest.raises(FedSPMError, match=sentence):
            act()


# -- density ratio model -----------------------------------------------------------------------------------------------


def test_the_covariance_goes_with_the_reference(samples, fit):  # noqa: F811
    """θ_0 − θ_2 and θ_1 − θ_2 from θ_1 − θ_0 and θ_2 − θ_0, for θ = (γ, ξ)"""
    other = fit_drm(samples, basis=quadratic, reference=2)
    turn = np.kron([[0, -1], [1, -1]], np.eye(3))
    np.testing.assert_allclose(other.covariance, turn @ fit.covariance @ turn.T, rtol=1e-6, atol=1e-12)


def test_no_quantile_lies_where_there_is_no_mass():
    random = np.random.default_rng(0)
    far = fit_drm([random.normal(0, 1, 40), np.r_[random.normal(0.8, 1, 40), 5000.0]], basis=lambda x: x)
    assert far.probabilities(0)[-1] == 0
    assert far.quantile(0, 1.0) == np.sort(far.pooled)[-2]


def test_the_summary_says_what_was_estimated(fit):  # noqa: F811
    lines = fit.summary().splitlines()
    for i in (1, 2):
        values, errors = np.r_[fit.gamma[i], fit.xi[i]], np.r_[fit.standard_errors.gamma[i], fit.standard_errors.xi[i]]
        for name, value, error in zip(("gamma", "xi_1", "xi_2"), values, errors, strict=True):
            (line,) = (line for line in lines if line.startswith(f"{i}  {name}"))
            z = value / error
            expected = [value, error, z, stats.chi2.sf(z**2, 1)]
            assert [float(word) for word in line.split()[2:]] == pytest.approx(expected, rel=0.05)


def test_what_is_not_asked_for_rightly_gets_a_sentence(fit):  # noqa: F811
    for sample in (-1, 3):
        with pytest.raises(FedSPMError, match="there is no sample"):
            fit.cdf(sample, 0.0)
    for level in (-0.1, 1.1, np.nan):
        with pytest.raises(FedSPMError, match="between 0 and 1"):
            fit.quantile(0, level)


# -- diagnostics -------------------------------------------------------------------------------------------------------


def test_a_line_compares_both_gauges_before_and_after(trained):  # noqa: F811
    """γ as eq. 6 likes it but for 10⁻³, and after the round but for 3 · 10⁻³: raw moves with it, fixed does not."""
    algorithm, shared, privates, data = trained
    diagnosis = Diagnosis(algorithm, data)
    shift = diagnosis.before(shared, privates).line["shift"]
    here, there = (shared | {"tilt.gamma": shared["tilt.gamma"] + shift + by} for by in (1e-3, 3e-3))
    before = diagnosis.before(here, privates)
    line, w = before.after(there), before.responsibilities
    assert (line["shift"], line["shift_after"]) == (pytest.approx(-1e-3), pytest.approx(-3e-3))
    for state, name, by in ((here, "f", line["shift"]), (there, "f_after", line["shift_after"])):
        for gauge, moved in (("raw", 0.0), ("fixed", by)):
            exact = exact_q2(diagnosis.log_ratios(state) + moved, diagnosis._client, w, 1.0).value
            assert line[gauge][name] == pytest.approx(-exact / len(w), rel=1e-9), (gauge, name)
    assert line["fixed"]["f_after"] == pytest.approx(line["fixed"]["f"], abs=1e-9)
    assert abs(line["raw"]["f"] - line["fixed"]["f"]) > 1e-8


@pytest.mark.parametrize(("joint", "momentum", "a"), [(True, 0.5, "2.50"), (False, 0.0, "3.00")])
def test_what_is_said_of_a_run_is_of_the_steps_its_density_ratios_took(tmp_path, joint, momentum, a):
    """With μ = 1/2 two steps weigh 1 + 3/2; without momentum three weigh one each."""
    blocks = {"predictor": {"momentum": 0.5, "steps": 2}, "router": {"momentum": 0.0, "steps": 3}}
    config = resolve({"algorithm": "feddrm", "options": {"joint": joint}, **blocks})
    (tmp_path / "config.toml").write_text(config.to_toml())
    run = Run(tmp_path)
    assert bridge_rows([(run, "raw", None)])[0][1:3] == [f"{momentum:g}", "raw"]
    assert f"μ = {momentum:g}" in accumulation(run)
    assert f"a_E = {a}" in accumulation(run)
