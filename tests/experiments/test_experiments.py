"""The paper's experiments: what they train, what they keep, and what they write from it."""

import pytest
from pydantic import ValidationError

from cells import line, recorded
from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.experiments import EXPERIMENTS, Selection, load_plan
from fedspm.experiments.coverage import missing, other_settings, reductions
from fedspm.experiments.plan import RESULTS, Plan, plan_cells
from fedspm.experiments.records import Records
from fedspm.experiments.results import (
    _tex,
    bridge_table,
    panel_methods,
    panel_tables,
    picture,
    same_seeds,
    write_results,
)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_of_every_experiment_has_a_folder_and_settings_of_its_own(tmp_path, name):
    plan = load_plan(name)
    cells = plan_cells(plan, Selection(), tmp_path)
    assert [(cell.panel, cell.row, cell.config.seed) for cell in cells] == plan.keys()
    assert len({cell.folder for cell in cells}) == len(cells)
    assert len({cell.config.to_toml() for cell in cells}) == len(cells)


def test_the_numbers_of_the_paper_are_those_of_its_tables():
    first, second = load_plan("table1"), load_plan("table2")
    assert first.panel("cifar100").paper["fedspm-1x"] == ("28.33 ± 0.37", "28.84 ± 0.40")
    assert first.panel("fashion-mnist").paper["ditto"] == ("34.30 ± 2.42", "54.87 ± 1.18")
    assert second.panel("inter-0.5").paper["fedspm-cx"] == ("73.15", "73.21")
    assert second.panel("intra-1").paper["fedspm-1x"] == ("63.10", "63.20")
    for row, (system, average) in first.panel("fashion-mnist").paper.items():
        assert second.panel("inter-1-intra-2").paper[row] == (system[:5], average[:5])
    assert all(set(panel.paper) == set(plan.rows) for plan in (first, second) for panel in plan.panels)


def test_fewer_rounds_are_the_first_of_the_same_schedule(tmp_path):
    (cell,) = plan_cells(load_plan("table1"), Selection([0], ["fedavg"], ["fashion-mnist"], rounds=40), tmp_path)
    assert (cell.config.rounds, cell.config.schedule) == (40, 200)


def test_what_is_recorded_is_not_trained_again_and_other_settings_are_refused(tmp_path):
    plan = load_plan("table1")
    wanted = Selection([0], ["fedavg", "feddrm"], ["fashion-mnist"])
    fedavg, feddrm = plan_cells(plan, wanted, tmp_path)
    records = recorded(tmp_path / "cells.jsonl", [line(fedavg)])
    assert fedavg in records
    assert feddrm not in records
    shorter = plan_cells(plan, Selection([0], ["fedavg"], ["fashion-mnist"], rounds=9), tmp_path)[0]
    with pytest.raises(FedSPMError, match="rounds: 200, now 9"):
        shorter in records  # noqa: B015


def test_first_rounds_are_gone_on_with(tmp_path):
    plan = load_plan("table1")
    which = ([0], ["fedavg"], ["fashion-mnist"])
    (first,), (more,) = (plan_cells(plan, Selection(*which, rounds=rounds), tmp_path) for rounds in (40, 60))
    (whole,) = plan_cells(plan, Selection(*which), tmp_path)
    records = recorded(tmp_path / "cells.jsonl", [line(more)])
    assert more in records
    assert whole not in records
    with pytest.raises(FedSPMError, match="rounds: 60, now 40"):
        first in records  # noqa: B015
    theirs = recorded(tmp_path / "other" / "cells.jsonl", [line(whole)])
    records.borrow([whole], [theirs])
    records.take([], plan)
    assert whole in Records(tmp_path / "cells.jsonl")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda text: "{]", "damaged after 0 lines"),
        (lambda text: text + text, "fashion-mnist fedavg 0 twice"),
        (lambda text: text.replace('"seed": 0, "settings"', '"seed": "0", "settings"'), "seed = '0': input should be"),
        (lambda text: text.replace('"title"', '"name"'), "title: field required"),
        (lambda text: text.replace('"components": 3', '"components": -3'), "components = -3"),
        (lambda text: text.replace('"metrics": [', '"metrics": [], "more": ['), r"metrics = \[\]: list should have"),
        (lambda text: text.replace('"method": "fedavg"', '"method": "fedsgd"'), "fedsgd seed 0, which table1 does not"),
        (lambda text: text.encode("utf-16"), "utf-8"),
    ],
)
def test_a_damaged_record_gets_a_sentence(tmp_path, damage, sentence):
    plan = load_plan("table1")
    (cell,) = plan_cells(plan, Selection([0], ["fedavg"], ["fashion-mnist"]), tmp_path)
    path = recorded(tmp_path / "cells.jsonl", [line(cell)]).path
    damaged = damage(path.read_text())
    path.write_bytes(damaged if isinstance(damaged, bytes) else damaged.encode())
    with pytest.raises(DamagedFile, match=sentence):
        Records(path).ordered(plan)


def test_all_of_the_experiments_take_what_they_know():
    wanted = Selection(rows=["fedavg", "default"])
    assert wanted.within(load_plan("table1")).rows == ["fedavg"]
    assert wanted.within(load_plan("ablation")).rows == ["default"]
    assert wanted.within(load_plan("momentum")) is None
    assert Selection(rounds=9).command(load_plan("isic"), RESULTS) == "fedspm experiment isic --rounds 9"


def test_a_panel_may_have_some_of_the_rows(tmp_path):
    plan = load_plan("ablation")
    cells = plan_cells(plan, Selection(panels=["cifar100"]), tmp_path)
    assert [cell.row for cell in cells] == ["default", "held for 200 rounds"]
    assert [(cell.panel, cell.row, cell.config.seed) for cell in plan_cells(plan, Selection(), tmp_path)] == plan.keys()
    records = recorded(tmp_path / "cells.jsonl", [line(cell) for cell in cells[:1]])
    assert missing(plan, records) == [
        "Fashion-MNIST, FedSPM (1×), C = 3, seed 0: all rows",
        "CIFAR-100, FedSPM (1×), C = 3, seed 0: held for 200 rounds",
        "CIFAR-100, FedSPM (C×), C = 3, seed 0: all rows",
    ]
    with pytest.raises(FedSPMError, match=r"fashion-mnist has no held for 200 rounds"):
        plan_cells(plan, Selection(rows=["held for 200 rounds"], panels=["fashion-mnist"]), tmp_path)
    with pytest.raises(ValidationError, match="the panel cifar100 has a row 'x', which the plan has not"):
        Plan.model_validate({**plan.model_dump(), "panels": [{**plan.panels[1].model_dump(), "rows": ["x"]}]})


def test_what_another_experiment_trained_with_the_same_settings_is_taken_over(tmp_path):
    first, second = load_plan("table1"), load_plan("table2")
    wanted = Selection([0], ["fedavg", "feddrm"])
    there = [cell for cell in plan_cells(first, wanted, tmp_path / "table1") if cell.panel == "fashion-mnist"]
    theirs = recorded(tmp_path / "table1" / "cells.jsonl", [line(cell, system=0.7) for cell in there])
    cells = plan_cells(second, wanted, tmp_path / "table2")
    records = Records(tmp_path / "table2" / "cells.jsonl")
    records.borrow(cells, [theirs])
    assert [(cell.panel, cell.row) for cell in cells if cell in records] == [
        ("inter-1-intra-2", "fedavg"),
        ("inter-1-intra-2", "feddrm"),
    ]
    records.take([], second)
    assert Records(records.path).lines == records.lines  # every figure is from cells.jsonl
    another = plan_cells(second, Selection([1], ["fedavg"]), tmp_path / "table2")
    records.borrow(another, [theirs])
    assert not any(cell in records for cell in another)


def test_the_page_shows_ours_beside_the_papers_and_what_is_missing(tmp_path):
    plan = load_plan("table1")
    cells = plan_cells(plan, Selection([0, 1], ["fedavg", "fedspm-1x"], ["fashion-mnist"]), tmp_path)
    values = {"fedavg": 0.4, "fedspm-1x": 0.6}
    lines = [line(cell, values[cell.row] + 0.01 * cell.config.seed) for cell in cells]
    records = recorded(tmp_path / "cells.jsonl", lines)
    reached = write_results(plan, records, tmp_path, "fedspm experiment table1")
    page = (tmp_path / "README.md").read_text()
    assert "**60.50 ± 0.71** <sup>(1)</sup> | 58.82" in page
    assert "Fashion-MNIST, default preset, seed 2: all rows" in page
    assert "**Reduced:** 4 of 132 trainings." in page
    assert [method.name for method in reached["fashion-mnist"]] == ["fedavg", "fedspm-1x"]
    assert (tmp_path / "figure.svg").stat().st_size > 1000
    assert r"$40.50\pm0.71" in (tmp_path / "table.tex").read_text()
    assert "`fedspm experiment table1` goes on" in page


def tables(lines):
    return [({each["method"] for each in found}, {each["seed"] for each in found}) for found in same_seeds(lines)]


def test_rows_stand_beside_those_with_the_same_seeds(tmp_path):
    plan = load_plan("table1")
    cells = plan_cells(plan, Selection([0, 1, 2], ["fedavg", "ditto", "fedspm-1x"], ["fashion-mnist"]), tmp_path)
    values = {"fedavg": (0.5, 0.6, 0.4), "ditto": (0.8,), "fedspm-1x": (0.6, 0.71, 0.52)}
    known = {(row, seed): value for row, found in values.items() for seed, value in enumerate(found)}
    lines = [line(cell, known[key]) for cell in cells if (key := (cell.row, cell.config.seed)) in known]
    assert tables(lines) == [({"fedavg", "ditto", "fedspm-1x"}, {0}), ({"fedavg", "fedspm-1x"}, {0, 1, 2})]
    three_two_one = [each for each in lines if (each["method"], each["seed"]) != ("fedavg", 2)]
    assert tables(three_two_one) == [
        ({"fedavg", "ditto", "fedspm-1x"}, {0}),
        ({"fedavg", "fedspm-1x"}, {0, 1}),
        ({"fedspm-1x"}, {0, 1, 2}),
    ]
    strangers = [each for each in lines if (each["method"], each["seed"]) in {("ditto", 0), ("fedavg", 1)}]
    assert tables(strangers) == [({"ditto"}, {0}), ({"fedavg"}, {1})]
    compared = panel_methods(plan, recorded(tmp_path / "cells.jsonl", lines), "fashion-mnist")
    assert [list(method.curves) for method in compared] == [[0], [0], [0]]
    page = "\n".join(panel_tables(plan, recorded(tmp_path / "cells.jsonl", lines), plan.panel("fashion-mnist")))
    seed_0, over_seeds = page.split("Seeds 0, 1, 2:")
    assert "**80.00** <sup>(1)</sup>" in seed_0
    assert "Ditto" not in over_seeds
    write_results(plan, recorded(tmp_path / "cells.jsonl", lines), tmp_path, "")
    for name in ("table.md", "table.tex"):
        wide = (tmp_path / name).read_text().lower()
        assert wide.index("80.00") < wide.index("seeds 0, 1, 2") < wide.index("61.00")
    assert "-11.00 ± 2.48" in over_seeds  # differences of 10, 11 and 12 points: t(0.975, 2) = 4.303, / √3


def test_where_a_published_data_set_lies_makes_no_difference(tmp_path):
    plan, elsewhere = load_plan("table1"), Selection([0], ["fedavg"], settings={"data": {"path": "/elsewhere"}})
    here = plan_cells(plan, Selection([0], ["fedavg", "ditto"]), tmp_path)
    there = plan_cells(plan, elsewhere, tmp_path)
    records = recorded(tmp_path / "cells.jsonl", [line(cell) for cell in there])
    assert not [said for said in reductions(plan, records) if "path" in said]
    assert any("paper" in text for text in panel_tables(plan, records, plan.panel("fashion-mnist")))
    records.refuse_other_data(here)
    assert there[0] in records
    assert [cell in records for cell in here].count(True) == len(there)


def test_less_than_the_plan_is_marked_everywhere(tmp_path):
    plan = load_plan("components")
    wanted = Selection([0], ["1", "2"], rounds=5, settings={"data": {"name": "fashion-sample"}})
    records = recorded(tmp_path / "cells.jsonl", [line(cell) for cell in plan_cells(plan, wanted, tmp_path)])
    assert reductions(plan, records) == [
        "data.name = fashion-sample instead of fashion-mnist",
        "the first 5 rounds of 200",
        "2 of 15 trainings",
    ]
    assert missing(plan, records) == [
        "Fashion-MNIST, FedSPM (1×), seed 0: 3, 4, 5",
        "Fashion-MNIST, FedSPM (1×), seeds 1, 2: all rows",
    ]
    write_results(plan, records, tmp_path, "")
    for name in ("README.md", "table.md", "table.tex", "figure.svg"):
        assert "educed" in (tmp_path / name).read_text(), name
    assert r"\footnotesize Reduced: data.name = fashion-sample" in (tmp_path / "table.tex").read_text()


def test_the_papers_numbers_stand_beside_its_own_data_only(tmp_path):
    plan = load_plan("table1")
    wanted = Selection([0], ["fedavg"], ["fashion-mnist"], settings={"data": {"name": "fashion-sample"}})
    records = recorded(tmp_path / "cells.jsonl", [line(cell) for cell in plan_cells(plan, wanted, tmp_path)])
    assert "39.15" not in "\n".join(panel_tables(plan, records, plan.panel("fashion-mnist")))


def test_another_schedule_is_told_from_the_first_rounds_of_the_same_and_rows_are_named(tmp_path):
    plan = load_plan("isic")
    (whole,) = plan_cells(plan, Selection([0], ["fedavg"], settings={"rounds": 100}), tmp_path)
    (part,) = plan_cells(plan, Selection([0], ["ditto"], rounds=100), tmp_path)
    records = recorded(tmp_path / "cells.jsonl", [line(whole), line(part)])
    assert other_settings(plan, records) == [
        "a schedule of 100 rounds instead of 400 (fedavg)",
        "the first 100 rounds of 400 (ditto)",
    ]
    (third,) = plan_cells(plan, Selection([1], ["ditto"]), tmp_path)
    records = recorded(tmp_path / "cells.jsonl", [line(whole), line(part), line(third)])
    assert other_settings(plan, records)[1] == "the first 100 rounds of 400 (ditto 0)"
    constant = load_plan("momentum")
    (cell,) = plan_cells(constant, Selection([0], ["mu-0"], rounds=100), tmp_path)
    assert other_settings(constant, recorded(tmp_path / "cells.jsonl", [line(cell)])) == ["the first 100 rounds of 200"]


def test_rows_on_other_data_are_refused_before_they_are_trained(tmp_path):
    plan = load_plan("table1")
    (known,) = plan_cells(plan, Selection([0], ["fedavg"], ["fashion-mnist"]), tmp_path)
    other = plan_cells(
        plan, Selection([0], ["fedprox"], ["fashion-mnist"], settings={"data": {"clients": 4}}), tmp_path
    )
    records = recorded(tmp_path / "cells.jsonl", [line(known)])
    with pytest.raises(FedSPMError, match="fedavg seed 0 on other data than fedprox would see"):
        records.refuse_other_data(other)
    records.refuse_other_data(plan_cells(plan, Selection([0], ["fedprox"], ["fashion-mnist"]), tmp_path))


def test_latex_knows_every_letter(tmp_path):
    plan = load_plan("table2")
    cells = plan_cells(plan, Selection([0], ["fedavg", "fedspm-1x"], ["inter-2", "intra-1"]), tmp_path)
    write_results(plan, recorded(tmp_path / "cells.jsonl", [line(cell) for cell in cells]), tmp_path, "")
    text = (tmp_path / "table.tex").read_text()
    assert text.isascii()
    assert _tex(r"50 % of a_b & c#1 {x} μ – ~\ ") == (
        r"50 \% of a\_b \& c\#1 \{x\} $\mu$ -- \textasciitilde{}\textbackslash{} "
    )
    assert r"Method & $\alpha_{\mathrm{inter}}$ = 2, $\alpha_{\mathrm{intra}}$ = 2 &" in text
    assert r"\multicolumn{2}{c}{System accuracy}" in text


def test_rounds_without_a_solution_are_counted(tmp_path):
    plan = load_plan("momentum")
    solved = {"gradient": 2.0, "f": 1.0, "f_after": 0.9}
    surrogate = {"surrogate": 1.0, "surrogate_gradient": 1.0, "surrogate_after": 0.95, "raw": None}
    diagnostics = [{"round": 0, "fixed": None, **surrogate}, {"round": 1, "fixed": solved, **surrogate}]
    one, two, *_ = plan_cells(plan, Selection(), tmp_path)
    lines = [line(one, diagnostics=diagnostics), line(two, diagnostics=diagnostics[:1])]
    again = plan_cells(plan, Selection([1], [one.row]), tmp_path)[0]
    seeds = "\n".join(bridge_table(plan, recorded(tmp_path / "cells.jsonl", [*lines, line(again, diagnostics=[])])))
    assert "0, seed 1" in seeds
    table = "\n".join(bridge_table(plan, recorded(tmp_path / "cells.jsonl", lines)))
    assert "1 of 2" in table
    assert "1 of 1" in table


def test_a_method_has_the_same_colour_in_every_picture(tmp_path):
    plan = load_plan("table2")
    cells = plan_cells(plan, Selection([0], ["feddrm"], ["inter-0.5"]), tmp_path)
    cells += plan_cells(plan, Selection([0], ["fedavg", "feddrm"], ["inter-2"]), tmp_path)
    colours = []
    for chosen in (cells, cells[1:]):
        records = recorded(tmp_path / "cells.jsonl", [line(cell) for cell in chosen])
        reached = {panel: panel_methods(plan, records, panel) for panel in dict.fromkeys(c.panel for c in chosen)}
        axes = picture(plan, records, reached).axes[len(reached) - 1]
        colours.append({each.get_label(): each.get_color() for each in axes.lines})
    assert colours[0] == colours[1]
    assert len(set(colours[0].values())) == 2
