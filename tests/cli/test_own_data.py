"""fedspm data check | plot, and training on one's own data, as a person types it."""

import json

import numpy as np
import pytest
from sklearn.datasets import load_wine
from typer.testing import CliRunner

from commands import fedspm
from fedspm.base.errors import FedSPMError
from fedspm.cli import data_check
from fedspm.cli.app import app

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


def typed(*arguments, code=0):
    """A command in this process: starting another takes longer than most of what is tested here."""
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert isinstance(done.exception, SystemExit | FedSPMError | None), done.exception
    assert done.exit_code == code, done.output
    return str(done.exception) if isinstance(done.exception, FedSPMError) else done.stdout


COLUMNS = ["--set", "data.client_column=Ort", "--set", "data.label_column=Sorte"]


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "wein"
    done = fedspm(
        "train", "--data", table.name, *COLUMNS, *SMALL.split(), "--rounds", 3, "--out", out, cwd=table.parent
    )
    return out, done.stdout


def test_check(table, tmp_path):
    text = typed("data", "check", table, *COLUMNS)
    for word in ("a table with a client column", "13 features", "北 Tal", "training rows", "ready"):
        assert word in text
    answer = json.loads(typed("data", "check", table, *COLUMNS, "--json"))
    assert answer["trainable"]
    assert answer["classes"] == ["Sorte 0", "Sorte 1", "Sorte 2"]
    assert typed("data", "check", table, code=1).count("problem") == 2
    assert not json.loads(typed("data", "check", table, "--json", code=1))["trainable"]
    assert "there is no folder or file" in typed("data", "check", tmp_path / "nothing", code=1)


def test_training_on_a_table_and_asking_it(run, table, tmp_path):
    out, text = run
    assert "fedspm on wein: 2 clients" in text
    assert "samples/queries.csv" in text
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["shape"] == [13]
    assert len(manifest["table"]["columns"]) == 13
    page = (out / "report.html").read_text()
    assert "How the clients" in page
    assert "北 Tal" in page
    replies = [
        json.loads(line) for line in fedspm("route", out, out / "samples" / "queries.csv", "--json").stdout.splitlines()
    ]
    assert [reply["row"] for reply in replies] == [1, 2]
    assert set(replies[0]["posterior"]) == {"Hügel/$oben$", "北 Tal"}
    answered = typed("route", out, table).splitlines()  # the training table itself: other columns are left out
    assert len(answered) == 178
    assert "row 178" in answered[-1]
    np.savez(tmp_path / "q.npz", x=np.ones((2, 12)))
    assert "the model was trained on" in typed("route", out, tmp_path / "q.npz", code=1)


def test_queries_without_rows_get_a_sentence(run, table, tmp_path):
    header = table.read_text("utf-8-sig").splitlines()[0]
    (tmp_path / "empty.csv").write_text(header, "utf-8")
    assert "has no rows" in typed("route", run[0], tmp_path / "empty.csv", code=1)


def test_no_row_to_evaluate_on_is_a_problem(table):
    text = typed("data", "check", table, *COLUMNS, "--set", "data.test_fraction=0.001", code=1)
    assert "problem  no client has test rows" in text
    assert "data.test_fraction" in text


def test_images_of_two_channels_are_trained_on_shown_and_asked(tmp_path):
    x, y = np.random.default_rng(0).integers(0, 256, (20, 2, 8, 8), np.uint8), np.arange(20) % 2
    (tmp_path / "data").mkdir()
    for name in ("north", "south"):
        np.savez(tmp_path / "data" / f"{name}.npz", x=x, y=y)
    out = tmp_path / "run"
    typed("train", "--data", tmp_path / "data", *SMALL.split(), "--rounds", 1, "--out", out)
    assert "What the clients" in (out / "report.html").read_text()
    np.savez(tmp_path / "bytes.npz", x=x[:3])
    np.savez(tmp_path / "fractions.npz", x=(x[:3] / 255).astype(np.float32))
    replies = [
        [json.loads(line)["posterior"] for line in typed("route", out, tmp_path / name, "--json").splitlines()]
        for name in ("bytes.npz", "fractions.npz")
    ]
    assert len(replies[0]) == 3
    assert replies[0] == replies[1]


def test_it_resumes_from_anywhere_and_notices_other_data(run, table, tmp_path, monkeypatch):
    out, _ = run
    monkeypatch.chdir(tmp_path)
    typed("resume", out)
    table.write_text(table.read_text("utf-8-sig").replace("14,23", "14,24"), "utf-8")
    assert "has changed since the run began" in typed("resume", out, code=1)


def test_plot(tmp_path):
    typed("data", "plot", "--clients", 9, "--alpha-inter", "0.5,2", "--out", tmp_path / "p")
    assert sorted(file.name for file in (tmp_path / "p").iterdir()) == [
        f"{name}.{kind}" for name in ("labels", "mixing", "shifts") for kind in ("png", "svg")
    ]
    labels = (tmp_path / "p" / "labels.svg").read_text()
    assert labels.count("client-8") == 2
    assert "ankle boot" in labels
    assert "× 0.5" in (tmp_path / "p" / "shifts.svg").read_text()
    assert "give numbers with commas" in typed("data", "plot", "--alpha-inter", "0.5,zero", code=1)


def test_columns_that_differ_can_be_read_on_a_narrow_terminal(tmp_path, monkeypatch):
    """Names of columns and clients stay, however long the levels are."""
    rows = [f"{place},{place} {k % 3} with a very long name of a level,{k % 2}" for place in "abc" for k in range(90)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["site,a_column_with_a_long_name,label", *rows]))
    monkeypatch.setattr(data_check.console, "width", 60)
    monkeypatch.setattr(data_check, "PIPE", 60)
    text = typed("data", "check", path)
    table = text[text.index("columns that differ") :]
    assert "no level in" in table
    for word in ("a_column", "client", "│      a │", "│      c │"):
        assert word in table, table
