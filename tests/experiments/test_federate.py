"""`fedspm compare --baselines`: rows of scikit-learn and of methods, and what follows from them."""

import json

import numpy as np
import pytest

from commands import fedspm
from fedspm.experiments.federate import Row, baseline_rows, client_table, sentences, table
from small import toy_rows


def row(name, average, system=None):
    figures = {"average": dict(enumerate(average)), "AUROC": {}}
    return Row(name, name, figures | ({"system": dict(enumerate(system))} if system else {}), {"a": figures["average"]})


def test_the_sentences_name_the_parts_and_their_differences():
    rows = [
        row("alone", [0.70, 0.72, 0.74]),
        row("pooled", [0.80, 0.80, 0.80], [0.80, 0.80, 0.80]),
        row("local", [0.60, 0.61, 0.62], [0.5, 0.5, 0.5]),
        row("fedavg", [0.65, 0.66, 0.68], [0.65, 0.66, 0.68]),
        row("feddrm", [0.75, 0.76, 0.77], [0.75, 0.70, 0.63]),
        row("fedspm-1x", [0.85, 0.86, 0.88], [0.84, 0.86, 0.88]),
    ]
    found = {sentence.split(" (")[0]: sentence for sentence in sentences(rows)[:-1]}
    assert "fedspm-1x minus alone" in found["Federation"]  # the best of those alone is logistic regression's
    assert "+14.3 ± 1.4 points: federation pays here" in found["Federation"]
    assert "+5.3 ± 1.4 points: it pays here" in found["Averaging"]
    assert "no difference can be told" in found["Routing"]
    assert "+10.3 ± 1.4 points" in found["The mixture"]
    assert "+6.3 ± 3.8 points: the federation is ahead" in found["Not pooling"]


def test_one_seed_tells_nothing_and_a_worse_federation_is_called_worse():
    rows = [row("alone", [0.9]), row("fedavg", [0.8], [0.8])]
    assert "one seed only" in sentences(rows)[0]
    rows = [row("alone", [0.9, 0.91]), row("fedavg", [0.80, 0.81], [0.8, 0.8])]
    assert "each client is better off alone" in sentences(rows)[0]


def test_only_a_pooled_learner_that_need_not_know_the_client_has_a_system_accuracy():
    lines = [
        {"seed": 0, "title": rows, "rows": rows, "accuracy": 0.5, "auroc": None, "clients": {"a": {"accuracy": 0.5}}}
        for rows in ("alone", "pooled", "pooled, with the client as a feature")
    ]
    assert [line[2] for line in table(baseline_rows(lines))] == ["–", "50.0", "–"]
    assert client_table(baseline_rows(lines))[1][0] == ["alone", "50.0"]


def test_the_command_answers_for_a_table(tmp_path):
    rows = []
    for i, name in enumerate(("north", "south")):
        x, y = toy_rows(60, i / 2, bool(i), seed=i)
        rows += [",".join([name, *map(str, np.round(values, 3)), label]) for values, label in zip(x, y, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["client,a,b,c,d,e,f,label", *rows]))
    out = tmp_path / "out"
    arguments = ["--data", tmp_path / "rows.csv", "--rounds", 1, "--algorithms", "local,fedavg", "--out", out]
    text = fedspm("compare", "--baselines", *arguments, "--set", "min_count=2").stdout
    assert "should I federate?" in text
    page = (out / "federate.md").read_text()
    for word in (
        "random forest, pooled",
        "gradient boosting, each client alone",
        "Local (1×)",
        "| north |",
        "one seed",
    ):
        assert word in " ".join(page.split()), word
    lines = [json.loads(line) for line in (out / "baselines.jsonl").read_text().splitlines()]
    assert len(lines) == 9
    assert all(0 <= line["accuracy"] <= 1 for line in lines)
    pooled = next(line for line in lines if line["title"] == "random forest, pooled")
    assert f"{100 * pooled['accuracy']:.1f}" in page
    assert pooled["accuracy"] == pytest.approx(np.mean([each["accuracy"] for each in pooled["clients"].values()]))
