"""Novelty, answers, batches and blends, against numbers worked out by hand."""

import asyncio
import time

import numpy as np
import pytest
import torch
from test_export import with_rows  # noqa: F401
from test_novelty import rows

from fedspm.serve.answers import WARNING, build_answers
from fedspm.serve.batching import Batcher
from fedspm.serve.bundle import Card, RoutingResult, pack
from fedspm.serve.dispatch import Dispatcher, Prediction, RemoteNode
from fedspm.serve.export import _sums, export
from fedspm.serve.novelty import Novelty, Sums
from serving import service

# -- novelty -----------------------------------------------------------------------------------------------------------


def test_a_component_of_min_count_rows_is_enough():
    x, group = rows(30, 0)
    group[:] = 0
    group[:10] = 1
    sums = Sums.of(x, group, 3, min_count=10)
    assert sums.count.tolist() == [20, 10, 0]


def test_the_units_of_the_rows_do_not_matter():
    x, group = rows(600, 0)
    queries = rows(50, 1, shift=5.0)[0]
    found = [Novelty.fit(Sums.of(x * unit, group, 3, min_count=10)).distance(queries * unit) for unit in (1.0, 1e-3)]
    assert torch.allclose(found[0], found[1], rtol=1e-3)


def test_the_score_is_the_share_of_known_rows_that_lie_nearer():
    """A centre at zero; distances 1, 2, …, 1001 are the quantiles of known rows."""
    novelty = Novelty(torch.zeros(1, 1), torch.eye(1), torch.arange(1.0, 1002.0))
    asked = torch.tensor([[0.5], [1.5], [-501.5], [900.5], [5000.0]])
    assert novelty.share_below(asked, {}).tolist() == pytest.approx([0.0, 0.0, 0.5, 0.899, 1.0])


def test_every_client_has_components_of_its_own(with_rows):  # noqa: F811
    run = with_rows[0]
    algorithm, federation = run.algorithm(), run.federation()
    sums = _sums(federation, algorithm, run.latest().shared)
    by_client = sums.count.view(3, -1).sum(1)
    least = algorithm.settings.min_count
    for i, part in enumerate(federation.train):
        assert len(part) - least * algorithm.settings.components < by_client[i] <= len(part)


def test_the_share_of_false_alarms_is_measured(with_rows, tmp_path):  # noqa: F811
    for wanted in (0.2, 0.8):
        assert export(with_rows[0], tmp_path / "bundle", wanted).false_alarms == pytest.approx(wanted, abs=0.15)


# -- answers -----------------------------------------------------------------------------------------------------------


def routed(posterior, novelty=None, false_alarms=None):
    card = Card.model_construct(names=["north", "south"], classes=["ill", "well"], false_alarms=false_alarms)
    components = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]] * len(posterior))
    return card, RoutingResult({}, torch.tensor(posterior), components, novelty)


def test_a_row_is_novel_beyond_the_share_of_false_alarms():
    found = build_answers(*routed([[0.6, 0.4]] * 3, torch.tensor([0.04, 0.9, 0.97]), 0.05), None)
    assert [reply["novel"] for reply in found] == [False, False, True]
    assert [reply.get("warning") for reply in found] == [None, None, WARNING]


def test_components_are_those_of_the_client_that_answered():
    prediction = Prediction(np.array([[0.3, 0.7]]), [{1: 1.0}])
    (reply,) = build_answers(*routed([[0.6, 0.4]]), prediction)
    assert (reply["client"], reply["answered_by"], reply["fallback"]) == ("north", "south", True)
    assert reply["components"] == pytest.approx([0.2, 0.8])
    assert reply["prediction"] == "well"


# -- batches -----------------------------------------------------------------------------------------------------------


def test_a_batch_has_at_most_so_many_rows_or_one_question():
    batches = []

    async def work(questions):
        batches.append(questions)
        await asyncio.sleep(0)
        return questions

    async def act():
        batcher = Batcher(work, len, 5)
        return await asyncio.gather(*(batcher.ask("x" * rows) for rows in (3, 3, 2, 9, 1)))

    assert asyncio.run(act()) == ["xxx", "xxx", "xx", "x" * 9, "x"]
    assert batches == [["xxx"], ["xxx", "xx"], ["x" * 9], ["x"]]


def test_who_has_given_up_is_not_computed_for():
    batches = []

    async def act():
        go = asyncio.Event()

        async def work(questions):
            batches.append(questions)
            await go.wait()
            return questions

        batcher = Batcher(work, len, 5)
        first, second, third = (asyncio.create_task(batcher.ask(question)) for question in "abc")
        batcher._most = 1  # so that the first is computed alone
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.sleep(0.01)
        batcher._most = 5
        go.set()
        return await asyncio.gather(first, third)

    assert asyncio.run(act()) == ["a", "c"]
    assert batches == [["a"], ["c"]]


# -- clients -----------------------------------------------------------------------------------------------------------


def test_the_share_of_a_client_is_that_of_its_rows(served):
    async def act():
        async with service(served[2]) as (http, _, _):
            return (await http.get("/v1/clients")).json()

    rows = {"north": 90, "south": 120, "west": 150}
    assert {each["client"]: each["share"] for each in asyncio.run(act())} == pytest.approx(
        {name: count / 360 for name, count in rows.items()}
    )


# -- blends and thresholds ---------------------------------------------------------------------------------------------


class One:
    """A transport on which north is gone and south answers one row."""

    async def send(self, method, url, patience, content=b"", headers=None):
        if "north" in url:
            return 503, b"{}"
        return 200, pack({"probabilities": torch.tensor([[0.25, 0.75]])})

    async def close(self): ...


def test_a_blend_in_place_of_a_client_with_all_of_the_posterior_is_still_a_distribution():
    nodes = [RemoteNode(name, f"http://{name}", One(), 1.0) for name in ("north", "south")]
    result = RoutingResult({"router": torch.zeros(1, 1, 2)}, torch.tensor([[1.0, 0.0]]), torch.ones(1, 2, 1), None)
    found = asyncio.run(Dispatcher(nodes).blend("1", torch.zeros(1, 2), result, time.monotonic() + 5, 3))
    assert found.weights == [{1: 1.0}]
    assert found.probabilities[0].tolist() == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.3])
def test_as_many_known_rows_are_flagged_as_asked(share):
    """One known row in each of the 1,000 steps of the calibration."""
    novelty = Novelty(torch.zeros(1, 1), torch.eye(1), torch.arange(1001.0))
    scores = novelty.share_below(torch.arange(1000.0)[:, None] + 0.5, {})
    found = build_answers(*routed([[0.6, 0.4]] * 1000, scores, share), None)
    assert sum(reply["novel"] for reply in found) == round(1000 * share)


def test_a_distance_does_not_depend_on_who_asks_at_the_same_time():
    """Clients 300 standard deviations apart; torch.cdist multiplies matrices, and cancels, beyond 25 rows."""
    draw = torch.Generator().manual_seed(0)
    group = torch.randint(0, 3, (3000,), generator=draw)
    x = torch.randn(3000, 8, generator=draw) + 300.0 * group[:, None]
    novelty = Novelty.fit(Sums.of(x, group, 3, min_count=10))
    alone = torch.cat([novelty.distance(row[None]) for row in x[:30]])
    assert torch.allclose(novelty.distance(x[:30]), alone, atol=1e-3)
