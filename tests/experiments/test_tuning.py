"""`fedspm tune`: what is tried, with which budget, and what is chosen."""

import json
import math
import tomllib

import pytest

from commands import fedspm
from fedspm.base.errors import FedSPMError
from fedspm.experiments import tune
from fedspm.experiments.tuning.page import profile, write_page
from fedspm.experiments.tuning.search import searches
from fedspm.experiments.tuning.space import Range, all_trials, of_method, parse_space, random_trials, require_space
from fedspm.experiments.tuning.tune import Outcome, Tuning

SPACE = {"predictor.learning_rate": (0.01, 0.1), "router.steps": (15, 30), "em.hold": (0, 20)}


def outcome(row, trial, *scores, seeds=(100, 101)):
    curve = [{"round": 3, "seconds": 2.0, "system_accuracy": 0.5}]
    return Outcome(row, trial, seeds, dict(zip(seeds, scores, strict=False)), {seeds[0]: curve})


def test_a_space_is_read_as_it_is_typed():
    found = parse_space(["router.steps=15,30", "router.learning_rate=0.001..0.1", "em.start=random,kmeans"])
    assert found["router.steps"] == (15, 30)
    assert found["router.learning_rate"] == Range(0.001, 0.1)
    assert found["em.start"] == ("random", "kmeans")
    assert found["router.learning_rate"].at(0.5) == pytest.approx(0.01)


@pytest.mark.parametrize("text", ["router.steps", "=3,4", "router.steps=", "router.learning_rate=a..b"])
def test_what_is_not_a_space_gets_a_sentence(text):
    with pytest.raises(FedSPMError, match="key=value,value"):
        parse_space([text])


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ({}, "nothing to tune"),
        ({"router.steps": (15,)}, "at least two values"),
        ({"router.learning_rate": Range(0.1, 0.01)}, "goes up from above zero"),
        ({"router.stops": (1, 2)}, "unknown configuration key"),
        ({"router.steps": (15, -1)}, "router.steps = -1"),
        ({"seed": (100, 101)}, "cannot be tuned"),
        ({"data.clients": (4, 8)}, "cannot be tuned"),
    ],
)
def test_a_space_that_cannot_be_trained_gets_a_sentence(space, sentence):
    with pytest.raises(FedSPMError, match=sentence):
        require_space(space, {})


def test_a_method_is_tuned_in_what_it_has():
    assert list(of_method(SPACE, "fedavg")) == ["predictor.learning_rate"]
    assert list(of_method(SPACE, "feddrm")) == ["predictor.learning_rate", "router.steps"]
    assert list(of_method(SPACE, "fedem")) == ["predictor.learning_rate", "em.hold"]
    assert list(of_method(SPACE, "fedspm-1x")) == list(SPACE)
    assert of_method({"options.joint": (True, False)}, "fedavg") == {}


def test_a_grid_is_every_combination_and_takes_no_range():
    assert len(all_trials(SPACE)) == 8
    assert {"predictor.learning_rate": 0.1, "router.steps": 15, "em.hold": 20} in all_trials(SPACE)
    with pytest.raises(FedSPMError, match="a range is for random and tpe"):
        all_trials({"router.learning_rate": Range(0.001, 0.1)})


def test_random_trials_are_different_and_the_same_every_time():
    space = {**SPACE, "router.learning_rate": Range(0.001, 0.1)}
    trials = random_trials(space, 6, "fedspm-1x")
    assert trials == random_trials(space, 6, "fedspm-1x")
    assert len({json.dumps(trial) for trial in trials}) == 6
    assert all(0.001 <= trial["router.learning_rate"] <= 0.1 for trial in trials)
    assert len(random_trials({"router.steps": (15, 30)}, 12, "fedspm-1x")) == 2  # there are no more


def test_every_method_has_the_same_budget():
    spaces = {"fedavg": {"predictor.learning_rate": Range(0.01, 0.1)}, "feddrm": {"router.steps": tuple(range(1, 40))}}
    assert {row: len(each.propose()) for row, each in searches("random", spaces, 5).items()} == {
        "fedavg": 5,
        "feddrm": 5,
    }
    for kind, trials, sentence in (("grid", 3, "--trials is for"), ("bayes", None, "there is no search 'bayes'")):
        with pytest.raises(FedSPMError, match=sentence):
            searches(kind, {}, trials)


def test_the_estimator_asks_for_the_same_trials_again_and_finds_the_best_region():
    pytest.importorskip("optuna")
    space = {"predictor.learning_rate": Range(0.001, 1.0)}

    def asked(trials):
        search = searches("tpe", {"fedavg": space}, trials)["fedavg"]
        found = []
        while wave := search.propose():
            (trial,) = wave
            found.append(trial["predictor.learning_rate"])
            search.learn(trial, -abs(math.log10(found[-1] / 0.03)))
        return found

    found = asked(25)
    assert len(found) == 25
    assert found[:12] == asked(12)
    late = sum(abs(math.log10(rate / 0.03)) for rate in found[15:]) / 10
    assert late < sum(abs(math.log10(rate / 0.03)) for rate in found[:10]) / 10


def test_the_best_mean_is_chosen_and_a_trial_that_failed_with_a_seed_is_not(tmp_path):
    trials = [{"predictor.learning_rate": rate} for rate in (0.01, 0.03, 0.1)]
    outcomes = [
        outcome("fedavg", trials[0], 0.6, 0.7),
        outcome("fedavg", trials[1], 0.8, 0.7),
        outcome("fedavg", trials[2], 0.99),
    ]
    found = Tuning("system", {"fedavg": {"predictor.learning_rate": (0.01, 0.03, 0.1)}}, outcomes)
    assert found.chosen == {"fedavg": trials[1]}
    assert found.at_the_edge("fedavg") == []
    assert list(profile(outcomes, "predictor.learning_rate")) == ["0.01", "0.03", "0.1"]
    write_page(tmp_path, found, "fedspm tune")
    assert tomllib.loads((tmp_path / "chosen.toml").read_text()) == {"fedavg": {"predictor": {"learning_rate": 0.03}}}
    page = " ".join((tmp_path / "tuning.md").read_text().split())
    assert "| **predictor.learning_rate=0.03** | 75.00 ± 7.07 |" in page
    assert "99.00 (1 failed)" in page
    edge = Tuning("system", found.spaces, outcomes[:2])
    assert edge.at_the_edge("fedavg") == ["predictor.learning_rate"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seeds": [99]}, "seeds below 100 are for reporting"),
        ({"settings": {"data": {"validation_fraction": 0.0}}}, "chosen on validation rows"),
        ({"settings": {"algorithm": "fedavg"}}, "use --seeds and --algorithms"),
        ({"metric": "loss"}, "there is no metric 'loss'"),
        ({"algorithms": ["fedavg", "fedavg"]}, "each only once"),
    ],
)
def test_a_tuning_that_would_prove_nothing_is_refused(tmp_path, options, sentence):
    with pytest.raises(FedSPMError, match=sentence):
        tune(**options, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tuning_from_the_command_line_is_judged_on_validation_rows_and_goes_on_where_it_stopped(tmp_path):
    small = ["--clients", "2", "--rounds", "1", "--set", "predictor.steps=1", "--set", "predictor.batch_size=16"]
    order = ["tune", "--algorithms", "fedavg", *small, "--try", "predictor.learning_rate=0.001,0.05"]
    text = fedspm(*order, "--out", tmp_path).stdout
    assert "2 trainings, 0 of them done" in " ".join(text.split())
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    best = max(lines, key=lambda line: line["scores"]["100"])
    chosen = tomllib.loads((tmp_path / "chosen.toml").read_text())
    assert chosen["fedavg"]["predictor"]["learning_rate"] == best["settings"]["predictor.learning_rate"]
    configs = [tomllib.loads(path.read_text()) for path in tmp_path.glob("runs/*/config.toml")]
    assert {config["data"]["validation_fraction"] for config in configs} == {0.2}
    again = fedspm(*order, "--out", tmp_path).stdout
    assert "2 trainings, 2 of them done" in " ".join(again.split())
