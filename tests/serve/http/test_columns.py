"""Columns are matched by name: what a caller names is put in order or refused, what has no names goes by position."""

import asyncio
import json
import threading
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch
from pandas import DataFrame
from safetensors.torch import load, save

from fedspm import Federation, connect
from fedspm.base.errors import FedSPMError
from fedspm.runs.folder import Run
from fedspm.serve.app import router_app
from fedspm.serve.bundle import load_node, load_router
from fedspm.serve.client import _body
from fedspm.serve.export import export
from fedspm.serve.node import node_app
from fedspm.serve.router import Router
from serving import Switchboard, ask, trained
from small import toy_rows

COLUMNS = ["age", 'the "pressure"', "Größe", "a", "b", "c"]
BACK = COLUMNS[::-1]
SHUFFLED = [COLUMNS[k] for k in (3, 0, 5, 1, 4, 2)]
SECRET = "a secret that is long enough"


class Beside(httpx.BaseTransport):
    """For callers that wait: the app runs on the event loop of another thread."""

    def __init__(self, app):
        self._inner, self._loop = httpx.ASGITransport(app), asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def handle_request(self, request):
        return asyncio.run_coroutine_threadsafe(self._answered(request), self._loop).result()

    async def _answered(self, request):
        reply = await self._inner.handle_async_request(request)
        return httpx.Response(reply.status_code, headers=reply.headers, content=await reply.aread())

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)


@pytest.fixture(scope="module")
def tabled(tmp_path_factory):
    """A model of named columns, its bundle, a caller of its router and a Python connection to it."""
    place = tmp_path_factory.mktemp("tabled")
    clients = {"north": (0.0, False), "south": (1.5, True)}
    rows = {name: toy_rows(90, *how, seed=i) for i, (name, how) in enumerate(clients.items())}
    model = trained(
        Federation.from_arrays({k: (DataFrame(x, columns=COLUMNS), y) for k, (x, y) in rows.items()}), place / "run"
    )
    export(Run.open(place / "run"), place / "bundle")
    nodes = {name: node_app(place / "bundle" / "clients" / name, SECRET) for name in clients}
    addresses = {name: f"http://{name}" for name in clients}
    router = Router(place / "bundle" / "router", addresses, transport=Switchboard(nodes, SECRET))
    with httpx.Client(transport=Beside(router_app(router)), base_url="http://here") as http:
        there = connect("http://here")
        there._http = http
        frame = DataFrame(np.concatenate([x[:20] for x, _ in rows.values()]), columns=COLUMNS)
        yield SimpleNamespace(model=model, bundle=place / "bundle", http=http, there=there, frame=frame)


def objects(frame):
    return [dict(zip(frame.columns, row.tolist(), strict=True)) for row in frame.values]


def test_bundles_hold_the_names_and_the_model_shows_them(tabled, served):
    assert load_router(tabled.bundle / "router").card.columns == COLUMNS
    assert load_node(tabled.bundle / "clients" / "north").card.columns == COLUMNS
    assert tabled.http.get("/v1/model").json()["columns"] == COLUMNS
    assert load_router(served[2] / "router").card.columns is None


@pytest.mark.parametrize("order", [COLUMNS, BACK, SHUFFLED], ids=["as trained", "reversed", "shuffled"])
def test_a_frame_is_answered_as_the_estimator_answers_it(tabled, order):
    asked = tabled.frame[order]
    expected = tabled.model.predict_proba(tabled.frame)
    assert np.array_equal(tabled.model.predict_proba(asked), expected)
    assert np.allclose(tabled.there.predict_proba(asked), expected, atol=1e-6)
    assert (tabled.there.predict(asked) == tabled.model.predict(tabled.frame)).all()
    assert np.allclose(tabled.there.route(asked), tabled.model.route(tabled.frame), atol=1e-6)


def test_an_array_goes_by_position_as_before(tabled):
    expected = tabled.model.predict_proba(tabled.frame)
    assert np.allclose(tabled.there.predict_proba(tabled.frame.values), expected, atol=1e-6)
    assert not np.allclose(tabled.there.predict_proba(tabled.frame[BACK].values), expected, atol=1e-2)


def test_a_frame_may_have_more_columns_as_with_the_estimator(tabled):
    more = tabled.frame.assign(id=9e9)
    assert (tabled.there.predict(more) == tabled.model.predict(more)).all()


def test_a_frame_with_a_wrong_name_is_refused_by_name(tabled):
    wrong = tabled.frame.rename(columns={"age": "Age"})
    with pytest.raises(FedSPMError, match="there is no column 'age', on which the model was trained; there are Age, "):
        tabled.there.predict(wrong)


def test_names_travel_with_the_rows(tabled):
    """A bundle that is swapped in between with other columns does not get rows in the order of the one before."""
    frame = tabled.frame[BACK]
    body = _body(torch.as_tensor(frame.values.copy()), list(frame.columns))
    assert list(load(body["content"])) == ["x"]
    found = tabled.http.post("/v1/predict", **body).json()["answers"]
    expected = tabled.model.predict_proba(tabled.frame)
    assert np.allclose([list(answer["probabilities"].values()) for answer in found], expected, atol=1e-6)


@pytest.mark.parametrize("order", [COLUMNS, BACK, SHUFFLED], ids=["as trained", "reversed", "shuffled"])
def test_json_objects_are_matched_by_name(tabled, order):
    rows = objects(tabled.frame[order])
    one = tabled.http.post("/v1/predict", json={"x": rows[0]}).json()
    many = tabled.http.post("/v1/predict", json={"x": rows}).json()["answers"]
    expected = tabled.model.predict_proba(tabled.frame)
    assert np.allclose(list(one["probabilities"].values()), expected[0], atol=1e-6)
    assert np.allclose([list(answer["probabilities"].values()) for answer in many], expected, atol=1e-6)


ROW = dict.fromkeys(COLUMNS, 1.0)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        ({"Age" if name == "age" else name: 1 for name in COLUMNS}, "no column 'age'"),
        ([ROW, dict.fromkeys(COLUMNS[1:], 1)], "x, row 2: there is no column 'age'"),
        (ROW | {"weight": 80}, "was not trained on a column 'weight'"),
        ([ROW, [1.0] * 6], "either lists of numbers or objects"),
        (ROW | {"age": "63"}, "'age' is not a number"),
        (ROW | {"age": True}, "'age' is not a number"),
        (ROW | {"age": [1]}, "'age' is not a number"),
        (["a" * 1000, *[""] * 5], "a row or a list of rows"),
        ({}, "no column 'age'"),
    ],
)
def test_objects_that_do_not_fit_are_refused_with_a_sentence(tabled, x, sentence):
    reply = tabled.http.post("/v1/predict", json={"x": x})
    assert reply.status_code == 422
    assert sentence in reply.json()["error"]


def test_a_value_that_is_missing_counts_as_the_mean(tabled):
    found = tabled.http.post("/v1/predict", json={"x": ROW | {"age": None}}).json()
    mean = tabled.model.predict_proba(DataFrame([ROW | {"age": float(tabled.model.mean_[0])}]))[0]
    assert np.allclose(list(found["probabilities"].values()), mean, atol=1e-6)


def test_values_of_objects_are_checked_as_those_of_lists(tabled):
    for value, sentence in (("1e999", "finite"), ("NaN", "finite"), ("1" + "0" * 400, "finite")):
        text = json.dumps({"x": ROW | {"age": "HERE"}}).replace('"HERE"', value)
        reply = tabled.http.post("/v1/predict", content=text, headers={"content-type": "application/json"})
        assert (reply.status_code, sentence in reply.json()["error"]) == (422, True), reply.text


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["Age", *COLUMNS[1:]], "there is no column 'age'"),
        ([*COLUMNS, "weight"], "was not trained on a column 'weight'"),
        ([*COLUMNS, "age"], "7 names for rows of 6"),
        (COLUMNS[:5], "there is no column 'c'"),
    ],
)
def test_tensors_whose_names_do_not_fit_are_refused_with_a_sentence(tabled, names, sentence):
    columns = 6 if "7 names" in sentence else len(names)
    x = torch.ones(2, columns)
    content = save({"x": x}, {"columns": json.dumps(names, ensure_ascii=False)})
    reply = tabled.http.post("/v1/predict", content=content, headers={"content-type": "application/x-safetensors"})
    assert reply.status_code == 422
    assert sentence in reply.json()["error"]


@pytest.mark.parametrize("columns", ["[", "{}", "[1]", "null"])
def test_names_that_are_no_list_of_names_are_refused(tabled, columns):
    content = save({"x": torch.ones(2, 6)}, {"columns": columns})
    reply = tabled.http.post("/v1/predict", content=content, headers={"content-type": "application/x-safetensors"})
    assert reply.status_code == 422
    assert "columns" in reply.json()["error"]


def test_objects_need_a_model_with_names(served):
    async def act(http, router, board):
        return await http.post("/v1/predict", json={"x": {"age": 63}})

    reply = ask(served[2], act)
    assert reply.status_code == 422
    assert "the columns of this model have no names" in reply.json()["error"]


def test_one_row_of_a_table_keeps_its_names(tabled):
    found = tabled.there.predict_proba(tabled.frame[BACK].iloc[0])
    assert np.allclose(found, tabled.model.predict_proba(tabled.frame)[:1], atol=1e-6)
