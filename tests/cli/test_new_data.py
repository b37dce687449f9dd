"""New data for a run: `fedspm predict` and `fedspm evaluate --data`."""

import csv
import json

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, roc_auc_score

from commands import fedspm
from fedspm import FederatedClassifier
from small import toy_rows

HEADER = ["a", "b", "c", "d", "e", "f"]


def write(path, x, *others, header=HEADER):
    rows = [[*map(float, values), *more] for values, *more in zip(x, *others, strict=True)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new data")
    sites = {name: toy_rows(80, i / 2, bool(i), seed=i) for i, name in enumerate(("north", "south"))}
    x, y = (np.concatenate(each) for each in zip(*sites.values(), strict=True))
    path = write(folder / "rows.csv", x, ["north"] * 80 + ["south"] * 80, y, header=[*HEADER, "client", "label"])
    fedspm("train", "--data", path, "--rounds", 2, "--components", 2, "--out", folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def new():
    return toy_rows(300, 0.2, False, seed=9)


def test_thousands_of_rows_become_a_table_and_a_summary(run, new, tmp_path):
    x, _ = new
    turned = write(tmp_path / "turned.csv", x[:, ::-1], header=HEADER[::-1])  # columns go by name
    text = fedspm("predict", run, turned, "--out", tmp_path / "answers.csv").stdout
    assert "300 rows" in text
    assert len(text.splitlines()) < 10
    with open(tmp_path / "answers.csv") as file:
        answers = list(csv.DictReader(file))
    model = FederatedClassifier.load(run)
    assert [row["prediction"] for row in answers] == model.predict(x).tolist()
    np.testing.assert_allclose([float(row["P(ill)"]) for row in answers], model.predict_proba(x)[:, 0], atol=1e-5)
    posterior = model.route(x)
    np.testing.assert_allclose([float(row["P(client south)"]) for row in answers], posterior[:, 1], atol=1e-5)
    assert [row["client"] for row in answers] == np.array(["north", "south"])[posterior.argmax(1)].tolist()
    assert [row["row"] for row in answers] == [str(j) for j in range(1, 301)]
    at_home = fedspm("predict", run, turned, "--client", "south", "--out", tmp_path / "south.parquet").stdout
    assert "south 300" in at_home
    from pyarrow.parquet import read_table

    table = read_table(tmp_path / "south.parquet").to_pydict()
    assert table["prediction"] == model.predict(x, client="south").tolist()


def test_new_rows_with_labels_are_evaluated(run, new, tmp_path):
    x, y = new
    model = FederatedClassifier.load(run)
    rows = write(tmp_path / "new.csv", x, y, header=[*HEADER, "label"])  # nobody says whose they are
    found = json.loads(fedspm("evaluate", run, "--data", rows, "--json").stdout)
    assert found["system_accuracy"] == pytest.approx(accuracy_score(y, model.predict(x)))
    area = roc_auc_score(y == "well", model.predict_proba(x)[:, 1])
    assert found["scores"]["system"]["auroc"] == pytest.approx(area, abs=1e-5)
    assert "average_accuracy" not in found
    whose = ["north"] * 100 + ["south"] * 200
    known = write(tmp_path / "known.csv", x, whose, y, header=[*HEADER, "client", "label"])
    found = json.loads(fedspm("evaluate", run, "--data", known, "--json").stdout)
    assert found["clients"]["south"]["rows"] == 200
    assert found["clients"]["south"]["accuracy"] == pytest.approx(model.score(x[100:], y[100:], client="south"))
    shown = fedspm("evaluate", run, "--data", rows).stdout
    assert "outside" in shown
    assert "AUROC" in shown


def test_what_cannot_be_answered_is_said(run, new, tmp_path):
    x, _ = new
    lacking = write(tmp_path / "lacking.csv", x[:, :5], header=HEADER[:5])
    refused = fedspm("predict", run, lacking, check=False)
    assert refused.returncode == 1
    assert "'f'" in refused.stderr
    rows = write(tmp_path / "rows.csv", x)
    assert "no client 'east'" in fedspm("predict", run, rows, "--client", "east", check=False).stderr
    assert ".csv or .parquet" in fedspm("predict", run, rows, "--out", tmp_path / "a.txt", check=False).stderr
    strange = write(tmp_path / "strange.csv", x, ["dead"] * 300, header=[*HEADER, "label"])
    assert "'dead' does not occur" in fedspm("evaluate", run, "--data", strange, check=False).stderr
    assert "fedspm predict" in fedspm("route", run, *[rows] * 4, check=False).stderr
