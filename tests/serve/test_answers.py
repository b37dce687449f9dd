"""What is said of a row, byte for byte, and that the OpenAPI page describes just that."""

import asyncio

import numpy as np
import torch
from pydantic import TypeAdapter
from pydantic_core import to_json
from safetensors.torch import save

from fedspm.serve.answers import LIKELIEST, SHOWN, Answer, Answers, build_answers
from fedspm.serve.bundle import Card, RoutingResult
from fedspm.serve.dispatch import Prediction
from serving import service

TENSORS = {"content-type": "application/x-safetensors"}


def test_the_bytes_of_an_answer():
    card = Card.model_construct(
        names=["north", "south"],
        classes=["ill", "well"],
        false_alarms=0.25,
        meanings={"north": [[1, 0], None], "south": [[0, 1], [1, 0]]},
    )
    result = RoutingResult(
        {}, torch.tensor([[0.75, 0.25]]), torch.tensor([[[0.5, 0.5], [0.25, 0.75]]]), torch.tensor([0.875])
    )
    routed = (
        b'{"client":"north","posterior":{"north":0.75,"south":0.25},"components":[%b],"novel":true,"novelty":0.875,'
        b'"warning":"this query resembles the data of no client; do not rely on the answer"'
    )
    assert to_json(build_answers(card, result, None)) == b"[" + routed % b"0.5,0.5" + b"}]"
    prediction = Prediction(np.array([[0.25, 0.75]], np.float32), [{1: 1.0}])
    assert to_json(build_answers(card, result, prediction)) == b"".join(
        [
            b"[" + routed % b"0.25,0.75",
            b',"answered_by":"south","weights":{"south":1.0},"fallback":true,"prediction":"well",',
            b'"probabilities":{"ill":0.25,"well":0.75},"means":"ill","in_words":"south\'s name for ill: well"}]',
        ]
    )


def test_of_very_many_clients_the_likeliest_are_named_and_the_others_summed_up():
    posterior = torch.softmax(3 * torch.randn(2, SHOWN + 1, generator=torch.Generator().manual_seed(0)), dim=1)
    for shown, clients in ((SHOWN, SHOWN), (LIKELIEST, SHOWN + 1)):
        share = posterior[:, :clients] / posterior[:, :clients].sum(1, keepdim=True)
        names = [f"site-{i}" for i in range(clients)]
        card = Card.model_construct(names=names, classes=["ill", "well"], false_alarms=None)
        found = build_answers(card, RoutingResult({}, share, torch.ones(2, clients, 1), None), None)
        for row, answer in enumerate(found):
            assert len(answer["posterior"]) == shown
            assert (
                answer["client"] == names[share[row].argmax()] == max(answer["posterior"], key=answer["posterior"].get)
            )
            assert all(value == float(share[row, names.index(name)]) for name, value in answer["posterior"].items())
            assert ("others" in answer) == (shown < clients)
            assert abs(sum(answer["posterior"].values()) + answer.get("others", 0.0) - 1) < 1e-5
            TypeAdapter(Answer).validate_python(answer)


def test_every_reply_is_as_the_openapi_page_says(served, pictured):
    async def replies(bundle, x):
        async with service(bundle) as (http, _, _):
            addresses = ["/v1/predict", "/v1/predict?mode=blend", "/v1/route", "/v1/predict?view=true"]
            calls = [
                http.post(path, content=save({"x": rows}), headers=TENSORS) for path in addresses for rows in (x, x[0])
            ]
            return [(await call).content for call in calls], (await http.get("/openapi.json")).json()

    for bundle, shape in ((served[2], (6,)), (pictured[1], (3, 8, 8))):
        found, page = asyncio.run(replies(bundle, torch.rand(3, *shape)))
        for content in found[::2]:
            batch = TypeAdapter(Answers).validate_json(content, strict=True)
            assert to_json(batch) == content  # nothing that is not declared, in the declared order
        for content in found[1::2]:
            assert to_json(TypeAdapter(Answer).validate_json(content, strict=True)) == content
        described = page["components"]["schemas"]["Answer"]
        assert list(described["properties"]) == list(Answer.__annotations__)
        assert set(described["required"]) == Answer.__required_keys__
        assert all("description" in field for field in described["properties"].values())
