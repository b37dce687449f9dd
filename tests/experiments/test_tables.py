"""What a table says: which figures of which seeds, in which column, beside which of the paper."""

import csv
import json

import pytest

from cells import line, method, recorded
from fedspm.base.errors import FedSPMError
from fedspm.experiments import Selection, load_plan
from fedspm.experiments.coverage import other_settings
from fedspm.experiments.plan import plan_cells
from fedspm.experiments.records import Records
from fedspm.experiments.results import beside_the_paper, bridges, panel_methods, same_seeds, write_results
from fedspm.experiments.statistics import best, ranks
from fedspm.experiments.tables import PLAIN, accuracy_rows, cost_rows, latex, spreadsheet
from fedspm.experiments.training_record import method_rows


def finished(name, seed, seconds=6.0, title="FedAvg (1×)", fingerprint="same"):
    """A training of three rounds, evaluated after the first and the last."""
    lines = [
        {
            "round": number,
            "system_accuracy": 0.1 * number,
            "average_accuracy": 0.2 * number,
            "parameters": {"shared": 10, "private": 5},
            "bytes_down": 1_000_000,
            "bytes_up": 2_000_000,
            "seconds": seconds * number / 3,
        }
        for number in (1, 3)
    ]
    return {"method": name, "seed": seed, "title": title, "data_fingerprint": fingerprint, "metrics": lines}


def test_a_mean_over_fewer_seeds_is_neither_ranked_nor_the_best():
    methods = [method("a", 0.5, 0.6), method("b", 0.9), method("c", 0.3, 0.4)]
    assert ranks(methods, "system") == {"a": 1, "c": 2}
    assert best(methods, "system").name == "a"


def test_a_row_holds_the_last_figures_of_every_seed():
    (row,) = method_rows([finished("fedavg", 0, seconds=6.0), finished("fedavg", 4, seconds=12.0)])
    assert row.accuracy["system"] == pytest.approx({0: 0.3, 4: 0.3})
    assert row.accuracy["average"] == pytest.approx({0: 0.6, 4: 0.6})
    assert (row.parameters, row.private, row.bytes_down, row.bytes_up) == (10, 5, 1_000_000, 2_000_000)
    assert row.seconds_per_round == pytest.approx((6 / 3 + 12 / 3) / 2)
    assert cost_rows([row], PLAIN) == [["FedAvg (1×)", "10", "5", "1.00", "2.00", "3.00"]]
    first, second = csv.DictReader(spreadsheet([row]).splitlines())
    assert [first[key] for key in ("parameters", "private_parameters", "bytes_down", "bytes_up")] == [
        "10",
        "5",
        "1000000",
        "2000000",
    ]
    assert [each["seconds_per_round"] for each in (first, second)] == ["2.0", "4.0"]


def test_rows_that_look_alike_and_rows_with_fewer_seeds_say_so():
    rows = [finished("feddrm", 0), finished("feddrm", 1), finished("mine", 0), finished("ditto", 0, title="Ditto (1×)")]
    assert [row.title for row in method_rows(rows)] == [
        "FedAvg (1×), feddrm",
        "FedAvg (1×), mine, 1 of 2 seeds",
        "Ditto (1×), 1 of 2 seeds",
    ]


def test_rows_on_other_data_are_not_compared():
    with pytest.raises(FedSPMError, match="ditto was trained on other data than the others with seed 1"):
        method_rows([finished("fedavg", 1), finished("ditto", 1, fingerprint="other")])


def test_the_terminal_marks_three():
    methods = [method(name, value) for name, value in zip("abcd", (0.4, 0.3, 0.2, 0.1), strict=True)]
    shown = [row[1] for row in accuracy_rows(methods, PLAIN)]
    assert [text.strip() for text in shown] == ["40.00 (1)", "30.00 (2)", "20.00 (3)", "10.00"]


def test_each_accuracy_stands_beside_that_of_the_paper(tmp_path):
    plan = load_plan("table1")
    cells = plan_cells(plan, Selection([0], ["fedavg", "ditto"], ["fashion-mnist"]), tmp_path)
    system = {"fedavg": 0.4, "ditto": 0.3}
    records = recorded(tmp_path / "cells.jsonl", [line(cell, system[cell.row]) for cell in cells])
    panel = plan.panel("fashion-mnist")
    heading, _, *rows = beside_the_paper(panel, panel_methods(plan, records, panel.name))
    assert [cell.strip() for cell in heading.split("|")[2:-1]] == ["system", "paper", "average", "paper", "routing"]
    ditto = [cell.strip() for cell in rows[1].split("|")[2:-1]]
    assert ditto[:4] == ["30.00 <sup>(2)</sup>", "34.30 ± 2.42", "40.00 <sup>(2)</sup>", "54.87 ± 1.18"]
    write_results(plan, records, tmp_path, "")
    wide = (tmp_path / "table.md").read_text().splitlines()
    columns = [cell.strip() for cell in wide[4].split("|")[1:-1]]
    ditto = next(row for row in wide if "Ditto" in row)
    found = dict(zip(columns, (cell.strip() for cell in ditto.split("|")[1:-1]), strict=True))
    assert found[f"system, {panel.title}"] == "30.00 <sup>(2)</sup>"
    assert found[f"average, {panel.title}"] == "40.00 <sup>(2)</sup>"
    spans, *_, ditto = (row for row in (tmp_path / "table.tex").read_text().splitlines() if " & " in row)
    assert spans.index("System") < spans.index("Average")
    assert ditto.endswith(r"& $30.00^{(2)}$ & $40.00^{(2)}$ \\")


def test_of_many_trainings_six_are_named_and_the_rest_counted(tmp_path):
    plan = load_plan("table1")
    rows = plan.row_names()[:9]
    short = plan_cells(plan, Selection([0], rows[:8], ["fashion-mnist"], rounds=9), tmp_path)
    whole = plan_cells(plan, Selection([0], rows[8:], ["fashion-mnist"]), tmp_path)
    records = recorded(tmp_path / "cells.jsonl", [line(cell) for cell in short + whole])
    assert other_settings(plan, records) == [f"the first 9 rounds of 200 ({', '.join(rows[:6])} and 2 more)"]


def test_a_longer_schedule_than_planned_is_said(tmp_path):
    plan = load_plan("isic")
    (cell,) = plan_cells(plan, Selection([0], ["fedavg"], settings={"rounds": 500}), tmp_path)
    records = recorded(tmp_path / "cells.jsonl", [line(cell)])
    assert other_settings(plan, records) == ["a schedule of 500 rounds instead of 400"]


def test_what_another_process_has_written_meanwhile_stays(tmp_path):
    plan = load_plan("table1")
    one, other = plan_cells(plan, Selection([0], ["ditto", "fedavg"], ["fashion-mnist"]), tmp_path)
    (tmp_path / "there").mkdir()
    theirs = recorded(tmp_path / "there" / "cells.jsonl", [line(one)])
    records = Records(tmp_path / "cells.jsonl")
    records.borrow([one], [theirs])
    recorded(records.path, [line(other)])
    records.take([], plan)
    methods = [json.loads(text)["method"] for text in records.path.read_text().splitlines()]
    assert methods == [row for row in plan.row_names() if row in ("ditto", "fedavg")]  # in the order of the plan


def test_a_schedule_is_the_same_however_it_was_said(tmp_path):
    plan = load_plan("table1")
    (cell,) = plan_cells(plan, Selection([0], ["fedavg"], ["fashion-mnist"]), tmp_path)
    said = cell.config.model_copy(update={"horizon": cell.config.rounds})
    theirs = recorded(tmp_path / "cells.jsonl", [line(cell) | {"settings": said.to_dict()}])
    records = Records(tmp_path / "other.jsonl")
    records.borrow([cell], [theirs])
    assert cell in records


def test_every_training_has_bridge_errors_of_its_own(tmp_path):
    plan = load_plan("momentum")
    surrogate = {"surrogate": 1.0, "surrogate_gradient": 1.0, "surrogate_after": 0.95, "raw": None}
    cells = plan_cells(plan, Selection(), tmp_path)[:2]
    lines = [
        line(cell, diagnostics=[{"round": 0, "fixed": {"gradient": size, "f": 1.0, "f_after": 0.9}, **surrogate}])
        for cell, size in zip(cells, (2.0, 3.0), strict=True)
    ]
    found = bridges(plan, recorded(tmp_path / "cells.jsonl", lines))
    assert [bridge.gradient[-1] for bridge in found.values()] == [2.0, 3.0]


def test_the_table_with_most_rows_comes_first():
    lines = [
        {"method": name, "seed": seed} for name, seeds in (("a", (0, 1)), ("b", (0, 1)), ("c", (1,))) for seed in seeds
    ]
    assert [{each["method"] for each in table} for table in same_seeds(lines)] == [{"a", "b", "c"}, {"a", "b"}]


def test_a_title_of_a_plugin_is_set_by_latex():
    rows = latex([method("fed_median & more", 0.5), method("b", 0.4)], "").splitlines()
    assert any(row.startswith(r"Fed\_Median \& More & ") for row in rows)
