"""Where two methods must agree, they do."""

import numpy as np
import pytest
import torch

from fedspm.algorithms.fedspm import FedSPM
from fedspm.engines.local import LocalEngine
from fedspm.federated.client import Client
from fedspm.federated.evaluation import Model
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.testing.algorithm_checks import train_rounds
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin
from small import small_settings


def trained(federation, settings):
    algorithm = FedSPM(settings, Task.of_federation(federation))
    with LocalEngine(federation, seed=settings.seed, workers=1) as engine:
        shared = train_rounds(algorithm, engine, begin(algorithm, engine), 0, settings.rounds)
        return personalised(algorithm, engine, shared)


def test_1x_and_cx_agree_for_one_component(vectors):
    one, many = (trained(vectors, small_settings(components=1, variant=variant)) for variant in ("1x", "cx"))
    assert one.shared.keys() == many.shared.keys()
    for name, value in one.shared.items():
        torch.testing.assert_close(value, many.shared[name], rtol=1e-5, atol=1e-6)


def test_equal_components_predict_and_route_as_one(vectors):
    model = trained(vectors, small_settings(components=1))
    copied = repeated(model, vectors, components=3)
    x = vectors.test[0].x
    with torch.no_grad():
        one, three = model.embed(x), copied.embed(x)
        np.testing.assert_allclose(model.posterior(one), copied.posterior(three), rtol=1e-4, atol=1e-6)
        for i in range(3):
            np.testing.assert_allclose(model.local(i, one), copied.local(i, three), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weights", [[1 / 3, 1 / 3, 1 / 3], [0.6, 0.3, 0.1]])
def test_equal_components_step_like_one_when_steps_are_scaled(vectors, weights):
    """Divided by π, the gradient of a component's head and tilt does not depend on how small the component is."""
    model = trained(vectors, small_settings(components=1))
    copied = repeated(model, vectors, components=3, weights=weights)
    for i, part in enumerate(vectors.train):
        after = [
            algorithm.maximise(client(part, i, private, components), shared, shared["tau"])
            for algorithm, shared, private, components in (
                (model.algorithm, model.shared, model.privates[i], [1.0]),
                (copied.algorithm, copied.shared, copied.privates[i], weights),
            )
        ]
        (one, one_private), (three, three_private) = after
        for name, value in one.result().items():
            other = three.result()[name]
            torch.testing.assert_close(other, value.expand_as(other), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(
            three_private["head.weight"], one_private["head.weight"].expand(3, -1, -1), rtol=1e-3, atol=1e-4
        )


def client(part, i, private, weights):
    responsibilities = torch.tensor(weights).expand(len(part), -1).contiguous()
    return Client(f"client-{i}", i, part.x, part.y, private | {"responsibilities": responsibilities}, 0, 0)


def repeated(model, federation, components, weights=None):
    """The same model with its one component copied, each copy with its share of the weight."""
    share = torch.tensor(weights or [1 / components] * components)
    settings: Settings = model.algorithm.settings.model_copy(update={"components": components})
    shared = dict(model.shared)
    for name in ("tilt.xi", "tilt.gamma"):
        shared[name] = shared[name].repeat_interleave(components, dim=1)
    shared["tau"] = shared["tau"] * share
    privates = [
        {
            "head.weight": private["head.weight"].repeat(components, 1, 1),
            "head.bias": private["head.bias"].repeat(components, 1),
            "mixing": share,
        }
        for private in model.privates
    ]
    return Model(FedSPM(settings, Task.of_federation(federation)), shared, privates)
