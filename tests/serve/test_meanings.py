"""Where label names are permuted by construction, an answer says whose name it is and what it stands for."""

import asyncio

import numpy as np
import pytest
import torch
from safetensors.torch import save
from test_by_hand import routed

from fedspm.data.heterogeneity import own_name
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.serve.answers import build_answers
from fedspm.serve.bundle import load_router
from fedspm.serve.dispatch import Prediction
from fedspm.serve.export import export
from fedspm.training.loop import train
from serving import service

TENSORS = {"content-type": "application/x-safetensors"}
BLOCK = {"encoder": "mlp", "dimension": 4, "steps": 5, "learning_rate": 0.05}


@pytest.fixture(scope="module", autouse=True)
def few_images():
    """In place of those that ship with the package: dark ones with a bright spot, whose place is their class."""
    random, labels = np.random.default_rng(0), np.arange(600) % 4
    images = random.integers(0, 60, (600, 8, 8)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[4 * (label // 2) :][:4, 4 * (label % 2) :][:, :4] += 120
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedspm.runs.config.load_data", lambda *_: (images, labels, ["bag", "boot", "coat", "sneaker"]))
        yield


def exported(place, **settings):
    trained = {"components": 2, "rounds": 20, "eval_every": 20, "workers": 1, "predictor": BLOCK, "router": BLOCK}
    config = resolve({"data": {"clients": 3}, "em": {"start": "kmeans"}}, trained, settings)
    run, federation = Run.begin(place / "run", config, "a test")
    train(config, run.algorithm(), federation, run=run)
    export(run, place / "bundle")
    return run, federation, place / "bundle"


def asked(bundle, x):
    async def act():
        async with service(bundle) as (http, _, _):
            reply = await http.post("/v1/predict", content=save({"x": x.contiguous()}), headers=TENSORS)
            return reply.json()["answers"]

    return asyncio.run(act())


@pytest.fixture(scope="module")
def permuted(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("permuted"))


def test_what_a_name_stands_for_is_what_the_construction_says(permuted):
    """The labels of a federation that is built without permutation say what the images show."""
    run, federation, _ = permuted
    shown = run.config.federation(permuted=False)
    assert shown.truth.naming is None
    for i, (part, true, component) in enumerate(zip(federation.test, shown.test, federation.truth.test, strict=True)):
        meant = [federation.truth.meant(i, c, y) for y, c in zip(part.y.tolist(), component.tolist(), strict=True)]
        assert meant == true.y.tolist()


def test_answers_say_what_their_names_stand_for(permuted):
    _, federation, bundle = permuted
    classes, right, wrong = federation.classes.tolist(), 0, 0
    for i, part in enumerate(federation.test):
        for reply, component in zip(asked(bundle, part.x), federation.truth.test[i].tolist(), strict=True):
            if reply["client"] == federation.names[i] and reply["means"] is not None:
                label = classes.index(reply["prediction"])
                means = classes[federation.truth.meant(i, component, label)]
                right, wrong = right + (reply["means"] == means), wrong + (reply["means"] != means)
                assert reply["in_words"] == f"client-{i}'s name for {reply['means']}: {reply['prediction']}"
    assert right > 90
    assert wrong < 0.05 * right  # rows whose component was not found


def test_a_blend_of_clients_has_no_one_meaning():
    card, result = routed([[0.6, 0.4]])
    card = card.model_copy(update={"meanings": {"north": [[1, 0], None], "south": [[0, 1], [1, 0]]}})
    found = [
        build_answers(card, result, Prediction(torch.tensor([[0.3, 0.7]]).numpy(), [weights]))[0]
        for weights in ({0: 1.0}, {1: 1.0}, {0: 0.5, 1: 0.5})
    ]
    assert [(reply.get("means"), reply["in_words"]) for reply in found] == [
        ("ill", "north's name for ill: well"),
        ("ill", "south's name for ill: well"),
        (None, "well, a blend of clients with label names of their own"),
    ]


def test_a_component_that_is_not_a_true_one_has_no_known_meaning(tmp_path):
    """FedDRM has one component for two true ones with names of their own: nobody can say which of them is meant."""
    _, federation, bundle = exported(tmp_path, algorithm="feddrm", components=1)
    (reply,) = asked(bundle, federation.test[0].x[:1])
    assert reply["means"] is None
    assert reply["in_words"] == f"{reply['answered_by']}'s own name: {reply['prediction']}"


def test_nothing_is_said_where_nothing_is_permuted(tmp_path, served):
    _, federation, bundle = exported(tmp_path, shift={"permutation": False})
    (reply,) = asked(bundle, federation.test[0].x[:1])
    assert "in_words" not in reply
    assert "means" not in reply
    for each in (bundle, served[2]):
        assert load_router(each / "router").card.meanings is None


def test_truth_keeps_the_names_of_those_who_stay(permuted):
    _, federation, _ = permuted
    less = federation.without(["client-0"])
    assert torch.equal(less.truth.naming, federation.truth.naming[1:])
    assert federation.with_validation(0.2, 0).truth.naming is federation.truth.naming


def test_the_words():
    assert own_name("client-3", "sneaker", "bag") == "client-3's name for bag: sneaker"
    assert own_name("client-3", "sneaker", None) == "client-3's own name: sneaker"
