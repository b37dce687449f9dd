"""Only as much as a caller may ask."""

import torch

from fedspm.serve.http.limits import Limits
from serving import ask


def test_requests_per_caller_are_limited(served):
    async def act(http, router, board):
        return [(await http.get("/v1/model")).status_code for _ in range(5)]

    assert ask(served[2], act, limits=Limits(rate=3)) == [200, 200, 200, 429, 429]


def test_a_full_batch_is_not_too_much(served, pictured):
    async def act(http, router, board):
        row = torch.rand(router.current.model.card.shape)
        replies = [await http.post("/v1/predict", json={"x": row.expand(n, *row.shape).tolist()}) for n in (8, 9)]
        return [reply.status_code for reply in replies]

    for bundle in (served[2], pictured[1]):
        assert ask(bundle, act, limits=Limits(batch=8)) == [200, 413]
