"""Statistics over seeds, and the tables that show them."""

import numpy as np
import pytest
from scipy import stats

from cells import method
from fedspm.base.errors import FedSPMError
from fedspm.experiments.cell import Cell
from fedspm.experiments.comparison import comparison_cells, slowest_first
from fedspm.experiments.select_components import SCORE, choice_rows
from fedspm.experiments.statistics import best, paired_difference, ranks, spread
from fedspm.experiments.tables import LATEX, MARKDOWN, accuracy_rows, difference_rows
from fedspm.runs.compatibility import differences
from fedspm.runs.config import resolve


def test_the_interval_is_that_of_the_paired_t_test():
    random = np.random.default_rng(3)
    these, those = random.normal(size=(2, 6))
    mean, half = paired_difference(dict(enumerate(these)), dict(enumerate(those)))
    interval = stats.ttest_rel(these, those).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((interval.low, interval.high))


def test_pairs_are_made_by_seed_not_by_position():
    assert paired_difference({1: 0.5, 2: 0.9}, {2: 0.7, 1: 0.5})[0] == pytest.approx(0.1)
    assert paired_difference({1: 0.5}, {2: 0.7}) is None


def test_one_seed_has_no_spread_and_no_interval():
    assert spread({0: 0.5}) == (0.5, None)
    assert paired_difference({0: 0.5}, {0: 0.7}) == (pytest.approx(-0.2), None)


def test_spread_divides_by_n_minus_one():
    mean, deviation = spread({0: 0.1, 1: 0.2, 2: 0.6})
    assert (mean, deviation) == (pytest.approx(0.3), pytest.approx(np.std([0.1, 0.2, 0.6], ddof=1)))


def test_equal_means_share_a_rank_and_methods_without_the_metric_have_none():
    methods = [method("a", 0.5), method("b", 0.7, routing=(0.9,)), method("c", 0.7), method("d", 0.1)]
    assert ranks(methods, "system") == {"a": 3, "b": 1, "c": 1, "d": 4}
    assert ranks(methods, "routing") == {"b": 1}
    assert best(methods, "routing").name == "b"


def test_an_option_goes_to_the_methods_that_have_it(tmp_path):
    cells = comparison_cells(
        {"options": {"mu": 0.1, "epochs": 2}}, ["fedavg", "fedprox", "fedbabu", "fedavg-ft"], [0], tmp_path
    )
    assert [cell.config.options for cell in cells] == [{}, {"mu": 0.1}, {"epochs": 2}, {"epochs": 2}]
    with pytest.raises(FedSPMError, match=r"options\.lam: none of fedavg, fedprox has such an option"):
        comparison_cells({"options": {"mu": 0.1, "lam": 0.2}}, ["fedavg", "fedprox"], [0], tmp_path)


def test_only_means_over_the_same_seeds_are_ranked():
    methods = [method("a", 0.5), method("b", 0.7), method("c", 0.6)]
    methods[1].accuracy["system"] = {1: 0.7}
    assert ranks(methods, "system") == {"a": 2, "c": 1}
    assert best(methods, "system").name == "c"


def test_a_number_of_components_is_chosen_among_those_with_all_seeds():
    found = {2: {0: -0.60, 1: -0.80}, 3: {0: -0.65}}
    lines = {
        count: {seed: {SCORE: score, "average_accuracy": 0.5} for seed, score in seeds.items()}
        for count, seeds in found.items()
    }
    (_, mean, verdict, _), (_, _, behind, _) = choice_rows(lines)
    assert (mean, verdict, behind) == ("-0.7000", "best", "-0.0500")


def test_tables_mark_the_first_three_as_the_paper_does():
    methods = [method("a", 0.5, 0.6), method("b", 0.7, 0.9), method("c", 0.4, 0.4), method("d", 0.1, 0.2)]
    marks = [row[1] for row in accuracy_rows(methods, LATEX)]
    assert marks[1] == r"$\mathbf{80.00\pm14.14}^{(1)}$"
    assert [mark.partition("^")[2] for mark in marks] == ["{(2)}$", "{(1)}$", "{(3)}$", ""]
    assert accuracy_rows(methods, MARKDOWN)[3][1] == "15.00 ± 7.07"
    assert [row[1] for row in difference_rows(methods, MARKDOWN)][1] == "best"
    assert difference_rows(methods, MARKDOWN)[0][1].startswith("-25.00 ± 63.53")  # t with one degree of freedom
    assert accuracy_rows(methods, MARKDOWN)[0][3] == "–"  # none of them routes


def test_seeds_in_order_and_within_them_the_slow_methods_first(tmp_path):
    cells = [Cell(row, resolve({"seed": seed}), tmp_path) for seed in (4, 0) for row in ("fedavg", "fedspm")]
    assert [cell.name for cell in slowest_first(cells)] == [
        "fedspm seed 4",
        "fedavg seed 4",
        "fedspm seed 0",
        "fedavg seed 0",
    ]


def test_settings_that_change_no_result_do_not_count_as_other_settings():
    one = resolve({"workers": 1})
    assert differences(one, resolve({"workers": 2, "keep_checkpoints": 5})) == []
    assert differences(one, resolve({"router": {"steps": 3}})) == ["router.steps: 15, now 3"]
