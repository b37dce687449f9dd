"""Bodies that are wrong or hostile are refused with a sentence, and nothing of them is logged."""

import io
import logging

import pytest
import torch
from PIL import Image
from safetensors.torch import save

from fedspm.serve.bundle import NodeModel, load_router
from fedspm.serve.http.limits import Limits
from fedspm.serve.http.problem import HTTPProblem
from fedspm.serve.http.request_body import _images
from serving import ask

ROW = [0.0] * 6
TENSORS = {"content-type": "application/x-safetensors"}


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"{", 400, "not JSON"),
        (b'{"x": ' + b"[" * 9, 400, "not JSON"),
        (b'{"x": ' + b"[" * 100_000, 413, "from 1 to 8 rows of shape [6]"),
        (b'{"x": [' + b"[]," * 40 + b"[]]}", 413, "from 1 to 8 rows of shape [6]"),
        (b'{"x": [' + b"{}," * 60 + b"{}]}", 413, "from 1 to 8 rows of shape [6]"),
        (b"[1]", 422, 'must be {"x"'),
        (b'{"x": [1, 2]}', 422, "shape [2]"),
        (b'{"x": [[1, 2, 3, 4, 5, 6], [1]]}', 422, "same shape"),
        (b'{"x": ["1", "2", "3", "4", "5", "6"]}', 422, "numbers"),
        (b'{"x": [1, 2, 3, 4, 5, ' + b"1" * 400 + b"]}", 422, "numbers"),
        (b'{"x": [true, false, true, false, true, false]}', 422, "numbers"),
        (b'{"x": [1, 2, 3, 4, 5, NaN]}', 422, "finite"),
        (b'{"x": [1, 2, 3, 4, 5, 1e300]}', 422, "finite"),
        (b'{"x": [1, 2, 3, 4, 5, 1' + b"0" * 400 + b"]}", 422, "numbers"),
        (b'{"x": []}', 422, "shape [0]"),
        (b'{"x": ' + str([ROW] * 9).encode() + b"}", 413, "from 1 to 8 rows"),
        (b"\xff\xfe\x00", 400, "not JSON"),
        (b" " * 5000, 413, "longer than 4000 bytes"),
    ],
)
def test_what_is_wrong_with_json_is_said(served, body, status, sentence):
    async def act(http, router, board):
        return await http.post("/v1/predict", content=body, headers={"content-type": "application/json"})

    limit = 4000 if body.isspace() else 200_000
    reply = ask(served[2], act, limits=Limits(body=limit, batch=8))
    assert reply.status_code == status
    assert sentence in reply.json()["error"]


def test_json_that_cannot_be_rows_is_refused_before_it_is_parsed(served, monkeypatch):
    """Parsing holds up everybody: 16 MiB of empty lists for seconds, and one long string makes all strings as long."""

    def parsed(body):
        raise AssertionError("it was parsed")

    lists = b'{"x":[' + b"[]," * 2**19 + b"[]]}"
    strings = b'{"x":["' + b"a" * 2**20 + b'"' + b',""' * 3000 + b"]}"

    async def act(http, router, board):
        kind = {"content-type": "application/json"}
        return [await http.post("/v1/predict", content=body, headers=kind) for body in (lists, strings)]

    monkeypatch.setattr("fedspm.serve.http.request_body.from_json", parsed)
    replies = ask(served[2], act)
    assert [reply.status_code for reply in replies] == [413, 422]
    assert "more than they need" in replies[0].json()["error"]


def png(width=8, height=8, mode="RGB"):
    buffer = io.BytesIO()
    Image.new(mode, (width, height), 7 if mode in "LI;16" else None).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_are_answered_and_hostile_ones_refused(pictured):
    _, bundle = pictured
    kind = {"content-type": "image/png"}
    bad = [b"", b"not an image", png()[:40], png(4000, 4001), png()[:-30] + b"\x00" * 30, b"\x89PNG\r\n\x1a\n" * 9]

    async def act(http, router, board):
        good = [
            await http.post("/v1/predict?view=true", content=png(30, 20), headers=kind),
            await http.post("/v1/predict", files={"image": png()}),
            await http.post("/v1/predict", files=[("images", png()), ("images", png(mode="L"))]),
            await http.post(
                "/v1/predict",
                content=save({"x": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}),
                headers=TENSORS,
            ),
        ]
        wrong = [await http.post("/v1/predict", content=body, headers=kind) for body in bad]
        wrong += [
            await http.post("/v1/predict", files=[("images", png(3000, 3000)) for _ in range(2)]),
            await http.post("/v1/predict", files=[("image", png()), ("image", png())]),
            await http.post("/v1/predict", data={"x": "1"}),
            await http.post("/v1/predict", content=b"--b", headers={"content-type": "multipart/form-data"}),
            await http.post("/v1/predict", content=b"x", headers={"content-type": "text/plain"}),
            await http.post("/v1/predict?mode=worst", content=png(), headers=kind),
            await http.post("/v1/predict?top=0", content=png(), headers=kind),
        ]
        return good, wrong

    good, wrong = ask(bundle, act)
    assert [reply.status_code for reply in good] == [200] * 4
    assert good[0].json()["view"].startswith("data:image/png;base64,")
    assert [len(reply.json().get("answers", "x")) for reply in good] == [1, 1, 2, 2]
    assert {reply.status_code for reply in wrong} <= {400, 413, 415, 422}
    assert all(len(reply.json()["error"]) > 10 for reply in wrong)


def test_image_files_are_refused_where_rows_had_other_values_or_unknown_ones(pictured):
    _, bundle = pictured
    card = load_router(bundle / "router").card
    for ends, known in (((0.0, 255.0), "values from 0 to 255"), (None, "values that are not known here")):
        other = card.model_copy(update={"range": ends})
        with pytest.raises(HTTPProblem, match=f"the clients' rows have {known}, and image files") as caught:
            _images([png()], True, other, Limits())
        assert caught.value.status == 415
    assert _images([png()], True, card, Limits())[0].shape == (1, 3, 8, 8)


def test_rows_that_overflow_are_refused_by_their_number_and_harm_nobody(pictured, monkeypatch):
    model, bundle = pictured
    rows = torch.rand(12, 3, 8, 8)
    absurd = rows.clone()
    absurd[2:] = 3e38

    async def act(http, router, board):
        refused = [
            await http.post("/v1/predict", content=save({"x": absurd}), headers=TENSORS),
            await http.post("/v1/route", json={"x": absurd[2].tolist()}),
        ]
        well = await http.post("/v1/predict", content=save({"x": rows}), headers=TENSORS)
        monkeypatch.setattr(NodeModel, "answer", lambda self, x, features: torch.full((len(x), 2), torch.nan))
        refused.append(await http.post("/v1/predict?mode=blend", content=save({"x": rows[0]}), headers=TENSORS))
        return refused, well, [node.up for node in router.dispatcher.nodes]

    refused, well, up = ask(bundle, act)
    assert [reply.status_code for reply in refused] == [422, 422, 422]
    assert "P(client | x) cannot be computed for rows 3, 4, 5, 6, 7, 8, 9, 10 and 2 more:" in refused[0].json()["error"]
    assert "for row 1:" in refused[1].json()["error"]
    assert "P(class | x) cannot be computed for row 1:" in refused[2].json()["error"]
    assert [answer["prediction"] for answer in well.json()["answers"]] == model.predict(rows).tolist()
    assert all(up)


def test_nothing_of_a_query_is_logged(served, caplog):
    async def act(http, router, board):
        await http.post("/v1/predict?secretly=8765", json={"x": [8765.4321] * 6})
        await http.post("/v1/predict", content=b"8765 is no JSON", headers={"content-type": "application/json"})
        await http.get("/8765")
        form = {"content-type": "multipart/form-data; boundary=b"}
        await http.post("/v1/predict", content=b"--b8765", headers=form)

    with caplog.at_level(logging.DEBUG, "fedspm.serve"):
        ask(served[2], act)
    assert "/v1/predict 200" in caplog.text
    assert "8765" not in caplog.text
    assert {record.name for record in caplog.records} <= {"fedspm.serve", "httpx"}
