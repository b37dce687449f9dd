"""The HTTP API: what is answered, who answers when a node is down, and how a bundle is swapped."""

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save

from commands import PATIENCE
from fedspm import Federation
from fedspm.runs.folder import Run
from fedspm.serve import batching
from fedspm.serve.batching import BRIEF, FEW, Worker
from fedspm.serve.dispatch import gather_rows
from fedspm.serve.export import export
from fedspm.serve.node import node_app
from fedspm.training.membership import remove
from serving import service, trained

TENSORS = {"content-type": "application/x-safetensors"}


@pytest.fixture
def rows(vectors):
    return torch.cat([part.x[:20] for part in vectors.test])


def ask(bundle, act, **options):
    async def run():
        async with service(bundle, **options) as (http, router, board):
            return await act(http, router, board)

    return asyncio.run(run())


def test_json_and_tensors_are_answered_as_the_model_answers(served, rows):
    model, _, bundle = served

    async def act(http, router, board):
        one = (await http.post("/v1/predict", json={"x": rows[0].tolist()})).json()
        many = (await http.post("/v1/predict", content=save({"x": rows}), headers=TENSORS)).json()
        routed = (await http.post("/v1/route", json={"x": rows.tolist()})).json()
        return one, many, routed

    one, many, routed = ask(bundle, act)
    expected = model.predict_proba(rows)
    assert np.allclose([list(answer["probabilities"].values()) for answer in many["answers"]], expected, atol=1e-6)
    assert [answer["prediction"] for answer in many["answers"]] == model.predict(rows).tolist()
    posterior = [list(answer["posterior"].values()) for answer in routed["answers"]]
    assert np.allclose(posterior, model.route(rows), atol=1e-6)
    assert "prediction" not in routed["answers"][0]
    assert one["answered_by"] == one["client"] == many["answers"][0]["client"]
    assert one["fallback"] is False
    assert one["novel"] is None  # a run on arrays in memory has nothing to calibrate with
    assert one["seconds"] > 0
    assert sum(one["components"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("shape", [(6,), (3, 4, 4)])
def test_bytes_are_answered_as_the_model_answers_them(tmp_path, shape):
    """A model that was fitted on values from 0 to 255 gets bytes as they are, and so do vectors in any case."""
    random = np.random.default_rng(0)
    rows = {
        name: (random.integers(low, low + 100, (40, *shape)).astype(np.uint8), np.arange(40) % 2)
        for name, low in (("a", 0), ("b", 150))
    }
    model = trained(Federation.from_arrays(rows), tmp_path / "run", rounds=2)
    export(Run.open(tmp_path / "run"), tmp_path / "bundle")
    x = torch.from_numpy(np.concatenate([rows["a"][0][:3], rows["b"][0][:3]]))

    async def act(http, router, board):
        return (await http.post("/v1/route", content=save({"x": x}), headers=TENSORS)).json()

    posterior = [list(answer["posterior"].values()) for answer in ask(tmp_path / "bundle", act)["answers"]]
    assert np.allclose(posterior, model.route(x), atol=1e-6)
    assert not np.allclose(posterior, model.route(x / 255), atol=1e-2)


def test_a_dead_node_is_replaced_by_the_next_best_and_the_reply_says_so(served, rows):
    model, _, bundle = served
    order = model.route(rows[:1])[0].argsort()[::-1]
    names = model.client_names_

    async def act(http, router, board):
        board.dead = {names[order[0]]}
        first = (await http.post("/v1/predict", json={"x": rows[0].tolist()})).json()
        board.dead = {names[order[0]], names[order[1]]}
        second = (await http.post("/v1/predict", json={"x": rows[0].tolist()})).json()
        return first, second, (await http.get("/v1/clients")).json()

    first, second, clients = ask(bundle, act)
    assert first["client"] == second["client"] == names[order[0]]
    assert (first["answered_by"], first["fallback"]) == (names[order[1]], True)
    assert second["answered_by"] == names[order[2]]
    expected = model.predict_proba(rows[:1], client=names[order[1]])[0]
    assert np.allclose(list(first["probabilities"].values()), expected, atol=1e-6)
    assert {client["client"]: client["up"] for client in clients}[names[order[0]]] is False


def test_a_slow_node_is_replaced_within_the_deadline(served, rows):
    model, _, bundle = served

    async def act(http, router, board):
        board.slow = {model.client_names_[model.route(rows[:1])[0].argmax()]: PATIENCE}
        began = time.monotonic()
        reply = (await http.post("/v1/predict", json={"x": rows[0].tolist()})).json()
        return reply, time.monotonic() - began

    reply, seconds = ask(bundle, act, deadline=6.0)
    assert reply["fallback"] is True
    assert seconds < 6.0


def test_nobody_waits_for_a_node_that_a_probe_found_gone(served, rows):
    model, _, bundle = served
    best = int(model.route(rows[:1])[0].argmax())

    async def act(http, router, board):
        board.slow = {model.client_names_[best]: PATIENCE}
        asked = asyncio.create_task(http.post("/v1/predict", json={"x": rows[0].tolist()}))
        while not board.asked:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        router.dispatcher.nodes[best]._down("a probe found it gone")
        return (await asked).json(), time.monotonic() - began

    reply, seconds = ask(bundle, act, deadline=PATIENCE)
    assert reply["fallback"] is True
    assert seconds < PATIENCE / 4  # half of the deadline is what it had


def test_no_node_left_is_503_with_a_sentence_and_they_come_back(served, rows):
    model, _, bundle = served

    async def act(http, router, board):
        board.dead = set(model.client_names_)
        refused = await http.post("/v1/predict", json={"x": rows.tolist()})
        ready = await http.get("/readyz")
        board.dead = set()
        await asyncio.gather(*(node.probe() for node in router.dispatcher.nodes))
        return refused, ready, await http.post("/v1/predict", json={"x": rows.tolist()}), await http.get("/readyz")

    refused, ready, again, ready_again = ask(bundle, act)
    assert refused.status_code == 503
    assert "no node could answer" in refused.json()["error"]
    assert ready.status_code == 503
    assert again.status_code == ready_again.status_code == 200


def test_a_blend_is_the_posterior_weighted_mixture(served, rows):
    model, _, bundle = served
    posterior = torch.tensor(model.route(rows))
    each = torch.stack([torch.tensor(model.predict_proba(rows, client=name)) for name in model.client_names_], 1)
    weight = posterior * (posterior >= posterior.topk(2, dim=1).values[:, -1:]) * (posterior >= 1e-3)
    expected = (weight[:, :, None] * each).sum(1) / weight.sum(1, keepdim=True)

    async def act(http, router, board):
        whole = (await http.post("/v1/predict?mode=blend&top=2", json={"x": rows.tolist()})).json()["answers"]
        board.dead = {model.client_names_[0]}
        return whole, (await http.post("/v1/predict?mode=blend&top=3", json={"x": rows.tolist()})).json()["answers"]

    whole, without = ask(bundle, act)
    assert np.allclose([list(answer["probabilities"].values()) for answer in whole], expected, atol=1e-5)
    assert all(model.client_names_[0] not in answer["weights"] for answer in without)
    assert all(sum(answer["weights"].values()) == pytest.approx(1) for answer in without)


def test_callers_at_the_same_time_share_batches(served, rows):
    _, _, bundle = served

    async def act(http, router, board):
        calls = [http.post("/v1/predict", json={"x": row.tolist()}) for row in rows]
        replies = await asyncio.gather(*calls)
        return [reply.json()["client"] for reply in replies], len(board.asked)

    clients, asked = ask(bundle, act)
    model = served[0]
    assert clients == [model.client_names_[i] for i in model.route(rows).argmax(1)]
    assert asked < len(rows) / 2


def test_a_new_bundle_is_swapped_in_without_dropping_a_request(served, vectors, rows, tmp_path):
    _, run, _ = served
    bundle = tmp_path / "bundle"
    old = export(Run.open(run), bundle).version
    other = trained(vectors, tmp_path / "other", rounds=5)

    async def act(http, router, board):
        nodes = [app.router.lifespan_context for app in board.apps.values()]
        contexts = [make(None) for make in nodes]
        for context in contexts:
            await context.__aenter__()
        new = export(Run.open(tmp_path / "other"), bundle).version
        assert new != old
        replies = []
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            replies.append(await http.post("/v1/predict", json={"x": rows.tolist()}))
            await asyncio.sleep(0.02)
            if router.current.model.card.version == new:
                break
        replies.append(await http.post("/v1/predict", json={"x": rows.tolist()}))
        for context in contexts:
            await context.__aexit__(None, None, None)
        return replies, router.current.model.card.version == new

    replies, swapped = ask(bundle, act)
    assert swapped
    assert all(reply.status_code == 200 for reply in replies)
    assert not any(answer["fallback"] for reply in replies for answer in reply.json()["answers"])
    last = [list(answer["probabilities"].values()) for answer in replies[-1].json()["answers"]]
    assert np.allclose(last, other.predict_proba(rows), atol=1e-6)


def test_a_bundle_with_another_client_waits_for_its_address_and_is_swapped_in(served, vectors, rows, tmp_path):
    """A client left and came back: the router meets it when the file of addresses has it."""
    _, run, _ = served
    bundle, addresses = tmp_path / "bundle", tmp_path / "nodes.toml"
    remove(Run.open(run), "west", tmp_path / "less", "a test")
    export(Run.open(tmp_path / "less"), bundle)
    addresses.write_text('north = "http://north"\nsouth = "http://south"\n')

    async def act(http, router, board):
        new = export(Run.open(run), bundle).version
        board.add("west", node_app(bundle / "clients" / "west", board.secret))
        async with AsyncExitStack() as nodes:
            for app in board.apps.values():
                await nodes.enter_async_context(app.router.lifespan_context(None))
            await asyncio.sleep(1.5)
            waiting = router.current.model.card.names
            addresses.write_text(addresses.read_text() + 'west = "http://west"\n')
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until and router.current.model.card.version != new:
                await asyncio.sleep(0.05)
            reply = await http.post("/v1/predict", json={"x": vectors.test[2].x[:20].tolist()})
        return waiting, router.current.model.card.names, [answer["answered_by"] for answer in reply.json()["answers"]]

    waiting, names, answered = ask(bundle, act, nodes=addresses)
    assert waiting == ["north", "south"]
    assert names == ["north", "south", "west"]
    assert "west" in answered


def test_a_damaged_bundle_is_not_swapped_in(served, rows, tmp_path):
    _, run, _ = served
    bundle = tmp_path / "bundle"
    version = export(Run.open(run), bundle).version

    async def act(http, router, board):
        (bundle / "router" / "router.safetensors").write_bytes(b"half")
        (bundle / "router" / "router.json").touch()
        await router.current.refresh()
        return router.current.model.card.version, (
            await http.post("/v1/predict", json={"x": rows.tolist()})
        ).status_code

    assert ask(bundle, act) == (version, 200)


def test_few_rows_are_computed_on_the_loop_only_while_that_is_brief(monkeypatch):
    now = 0.0
    monkeypatch.setattr(batching, "time", SimpleNamespace(perf_counter=lambda: now))

    async def act():
        worker, on_loop = Worker("test"), []
        for rows, seconds in ((1, 0), (1, 0), (FEW + 1, 0), (FEW, 2 * BRIEF), (1, 0), (1, 0)):

            def work(seconds=seconds):
                nonlocal now
                now += seconds
                on_loop.append(threading.current_thread() is threading.main_thread())

            await worker.compute(rows, work)
        worker.shutdown()
        return on_loop

    assert asyncio.run(act()) == [False, True, False, True, False, True]


def test_rows_of_images_are_taken_as_indexing_takes_them():
    x, z = (torch.rand(6, 3, 5, 4).contiguous(memory_format=torch.channels_last) for _ in range(2))
    found = gather_rows([x, z], [np.array([4, 0, 4]), np.array([1])])
    assert torch.equal(found, torch.cat([x[[4, 0, 4]], z[[1]]]))
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_health_metrics_and_openapi(served, rows):
    _, _, bundle = served

    async def act(http, router, board):
        await http.post("/v1/predict", json={"x": rows.tolist()})
        return [await http.get(path) for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/model", "/")]

    health, ready, metrics, openapi, model, page = ask(bundle, act)
    assert health.json() == {"status": "ok"}
    assert ready.json()["status"] == "ready"
    assert f"fedspm_rows_total {len(rows)}.0" in metrics.text
    assert 'fedspm_node_up{client="north"} 1.0' in metrics.text
    operation = openapi.json()["paths"]["/v1/predict"]["post"]
    assert {"multipart/form-data", "application/json", "image/*"} <= set(operation["requestBody"]["content"])
    assert {parameter["name"] for parameter in operation["parameters"]} == {"mode", "top", "view"}
    assert model.json()["names"] == ["north", "south", "west"]
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
