"""The one SGD loop against PyTorch's optimiser, step by step."""

import pytest
import torch
from torch import nn

from fedspm.base.errors import TrainingFailed
from fedspm.nn.build_encoder import build_encoder
from fedspm.nn.sgd import Batch, minimise

FORMATS = {"channels last": torch.channels_last, "contiguous": torch.contiguous_format}


def batches(steps=4):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(steps, 8, 3, 12, 12, generator=draw)
    y = torch.randint(0, 4, (steps, 8), generator=draw)
    return [Batch(x[i].to(memory_format=torch.channels_last), y[i], torch.arange(8)) for i in range(steps)]


@pytest.mark.parametrize("layout", FORMATS)
def test_it_is_sgd_with_momentum_however_parameters_lie_in_memory(layout):
    """A checkpoint gives contiguous weights, an encoder channels last ones; gradients come as they like."""
    encoder = build_encoder("predictor", "cnn", (3, 12, 12), 4, copies=1, seed=0)
    start = {
        name: value.contiguous(memory_format=FORMATS[layout]) if value.ndim == 4 else value
        for name, value in encoder.initial().items()
    }
    start |= {"unused": torch.ones(3), "fixed": torch.ones(2)}

    def objective(w, batch):
        return nn.functional.cross_entropy(encoder(w, batch.x, training=True)[:, 0] * w["fixed"][0], batch.y)

    last = encoder.parameters[-1]
    moved = minimise(
        start, objective, batches(), learning_rate=0.1, momentum=0.9, fixed=["fixed"], scale={last: torch.tensor(3.0)}
    )
    by_hand = {name: value.clone().requires_grad_(name != "fixed") for name, value in start.items()}
    optimiser = torch.optim.SGD([value for value in by_hand.values() if value.requires_grad], lr=0.1, momentum=0.9)
    for batch in batches():
        optimiser.zero_grad()
        objective(by_hand, batch).backward()
        by_hand[last].grad.mul_(3.0)
        optimiser.step()
    for name in start:
        torch.testing.assert_close(moved[name], by_hand[name].detach(), rtol=0, atol=1e-6)
        assert torch.equal(moved[name], start[name]) == (name in {"unused", "fixed"})


def test_two_parameters_with_one_gradient_are_scaled_apart():
    """PyTorch may hand out the same tensor as the gradient of both."""
    start = {"one": torch.zeros(3), "other": torch.zeros(3)}

    def objective(w, batch):
        return (w["one"] + w["other"]).sum()

    moved = minimise(start, objective, batches(1), learning_rate=1.0, momentum=0.0, scale={"one": torch.tensor(2.0)})
    assert torch.equal(moved["one"], torch.full((3,), -2.0))
    assert torch.equal(moved["other"], torch.full((3,), -1.0))


def test_a_parameter_that_a_batch_does_not_reach_goes_on_in_its_direction():
    first = iter([1.0, 0.0, 0.0])

    def objective(w, batch):
        return w["always"].sum() + (w["once"].sum() if next(first) else 0.0)

    start = {"always": torch.zeros(1), "once": torch.zeros(1)}
    moved = minimise(start, objective, batches(3), learning_rate=1.0, momentum=0.5)
    assert moved["once"].item() == pytest.approx(-(1 + 0.5 + 0.25))


def test_a_step_into_infinity_is_said():
    with pytest.raises(TrainingFailed, match="lower the learning rate"):
        minimise({"w": torch.ones(2)}, lambda w, batch: (w["w"] / 0).sum(), batches(1), learning_rate=0.1, momentum=0.0)
