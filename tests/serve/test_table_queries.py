"""Rows of mixed columns through the service: words, truth values, dates and missing values by name."""

import json
import shlex

import numpy as np
import pandas
import pytest

from fedspm import Federation
from fedspm.cli.serve import _how_to_ask
from fedspm.runs.folder import Run
from fedspm.serve.bundle import load_router
from fedspm.serve.export import export
from serving import ask, trained


def ward(n, seed):
    r = np.random.default_rng(seed)
    age, sex = r.normal(60, 10, n), r.choice(["M", "F"], n)
    frame = pandas.DataFrame({"age": age, "sex": sex, "smoker": r.random(n) < 0.4})
    frame["sugar"] = np.where(r.random(n) < 0.3, np.nan, r.normal(5, 1, n))
    frame["seen"] = pandas.Timestamp("2020-01-01") + pandas.to_timedelta(r.integers(0, 900, n), "D")
    return frame, np.where((age > 60) ^ (sex == "M"), "ill", "well")


@pytest.fixture(scope="module")
def wards(tmp_path_factory):
    place = tmp_path_factory.mktemp("wards")
    federation = Federation.from_arrays({"north": ward(60, 0), "south": ward(50, 1)}, test_fraction=0.3)
    model = trained(federation, place / "run")
    export(Run.open(place / "run"), place / "bundle")
    return model, place / "bundle"


def posted(bundle, x):
    async def act(http, router, board):
        return await http.post("/v1/predict", json={"x": x})

    return ask(bundle, act)


def rows_of(frame):
    written = frame.assign(seen=frame["seen"].dt.strftime("%Y-%m-%d")).astype(object)
    return written.where(written.notna(), None).to_dict("records")


def test_objects_are_answered_as_the_estimator_answers_a_frame(wards):
    model, bundle = wards
    frame, _ = ward(20, 5)
    expected = model.predict_proba(frame)
    reply = posted(bundle, rows_of(frame[frame.columns[::-1]]))
    assert reply.status_code == 200, reply.text
    found = [list(answer["probabilities"].values()) for answer in reply.json()["answers"]]
    assert np.allclose(found, expected, atol=1e-6)
    assert np.isfinite(found).all()
    assert load_router(bundle / "router").card.table == model.schema_


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"age": "old"}, "'age' is not a number"),
        ({"sex": ["M"]}, "'sex' is not a single value"),
        ({"seen": "soon"}, "column 'seen' holds 'soon', which is not a date such as 2020-12-31"),
        ({"weight": 80}, "was not trained on a column 'weight'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(wards, change, sentence):
    reply = posted(wards[1], rows_of(ward(1, 5)[0])[0] | change)
    assert reply.status_code == 422
    assert sentence in reply.json()["error"]


def test_rows_without_names_are_refused(wards):
    reply = posted(wards[1], [60.0, 1.0, 1.0, 5.0, 18000.0])
    assert reply.status_code == 422
    assert "give rows with names of columns: age, sex, smoker, sugar, seen" in reply.json()["error"]


def test_the_command_that_serve_prints_can_be_typed(wards):
    """Words, dates and missing values are asked for by name, as the service takes them."""
    _, bundle = wards
    run = Run.open(bundle.parent / "run")
    samples = bundle.parent / "samples"
    samples.mkdir()
    (samples / "queries.csv").write_text("seen,age,sex,smoker,sugar\n2020-02-25 00:00:00,61.5,M,True,\n")
    command, _ = _how_to_ask(samples, run.task.schema, "http://127.0.0.1:8000/v1/predict", with_token=False)
    words = shlex.split(command.removesuffix("\\"))
    body = words[words.index("-d") + 1]
    assert json.loads(body)["x"]["sugar"] is None
    reply = posted(bundle, json.loads(body)["x"])
    assert reply.status_code == 200, reply.text
