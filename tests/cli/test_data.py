"""fedspm data check | plot, and training on one's own data, as a person types it."""

import json

import numpy as np
import pytest
from sklearn.datasets import load_wine

from commands import fedspm

SMALL = "--components 2 --workers 1 --set em.hold=1 --set predictor.steps=2 --set router.steps=2"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """scikit-learn's wines, with a site by their alcohol; names that a file system and a formula would stumble over."""
    wine = load_wine()
    path = tmp_path_factory.mktemp("data") / "wein.csv"
    names = [name.replace("/", " of ") for name in wine.feature_names]
    lines = [";".join(["Ort", *names, "Sorte"])]
    for row, kind in zip(wine.data, wine.target, strict=True):
        where = "Hügel/$oben$" if row[0] > 13 else "北 Tal"
        lines.append(";".join([where, *(str(value).replace(".", ",") for value in row), f"Sorte {kind}"]))
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    return path


COLUMNS = ["--set", "data.client_column=Ort", "--set", "data.label_column=Sorte"]


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "wein"
    done = fedspm(
        "train", "--data", table.name, *COLUMNS, *SMALL.split(), "--rounds", 3, "--out", out, cwd=table.parent
    )
    return out, done.stdout


def test_check(table, tmp_path):
    done = fedspm("data", "check", table, *COLUMNS)
    for word in ("a table with a client column", "13 features", "北 Tal", "training rows", "ready"):
        assert word in done.stdout
    answer = json.loads(fedspm("data", "check", table, *COLUMNS, "--json").stdout)
    assert answer["trainable"]
    assert answer["classes"] == ["Sorte 0", "Sorte 1", "Sorte 2"]
    bad = fedspm("data", "check", table, check=False)
    assert bad.returncode == 1
    assert bad.stdout.count("problem") == 2
    assert "Traceback" not in bad.stderr


def test_training_on_a_table_and_asking_it(run, table, tmp_path):
    out, text = run
    assert "fedspm on wein: 2 clients" in text
    assert "samples/queries.csv" in text
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["shape"] == [13]
    assert len(manifest["columns"]) == 13
    page = (out / "report.html").read_text()
    assert "How the clients" in page
    assert "北 Tal" in page
    replies = [
        json.loads(line) for line in fedspm("route", out, out / "samples" / "queries.csv", "--json").stdout.splitlines()
    ]
    assert [reply["row"] for reply in replies] == [1, 2]
    assert set(replies[0]["posterior"]) == {"Hügel/$oben$", "北 Tal"}
    answered = fedspm("route", out, table).stdout.splitlines()  # the training table itself: other columns are left out
    assert len(answered) == 178
    assert "row 178" in answered[-1]
    np.savez(tmp_path / "q.npz", x=np.ones((2, 12)))
    refused = fedspm("route", out, tmp_path / "q.npz", check=False)
    assert "the model was trained on" in refused.stderr


def test_it_resumes_from_anywhere_and_notices_other_data(run, table, tmp_path):
    out, _ = run
    fedspm("resume", out, cwd=tmp_path)
    table.write_text(table.read_text("utf-8-sig").replace("14,23", "14,24"), "utf-8")
    changed = fedspm("resume", out, cwd=tmp_path, check=False)
    assert changed.returncode == 1
    assert "has changed since the run began" in changed.stderr


def test_plot(tmp_path):
    fedspm("data", "plot", "--clients", 9, "--alpha-inter", "0.5,2", "--out", tmp_path / "p")
    assert sorted(file.name for file in (tmp_path / "p").iterdir()) == [
        f"{name}.{kind}" for name in ("labels", "mixing", "shifts") for kind in ("png", "svg")
    ]
    labels = (tmp_path / "p" / "labels.svg").read_text()
    assert labels.count("client-8") == 2
    assert "ankle boot" in labels
    assert "× 0.5" in (tmp_path / "p" / "shifts.svg").read_text()
    refused = fedspm("data", "plot", "--alpha-inter", "0.5,zero", check=False)
    assert "give numbers with commas" in refused.stderr
