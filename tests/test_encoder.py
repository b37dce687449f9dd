"""An encoder is a pure function of its tensors, whatever module it is made of."""

import torch
from torch import nn
from torch.func import functional_call

from fedspm.encoders.encoder import Encoder, build_encoder


class Tied(nn.Module):
    """One weight in two places, and a buffer that training moves."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.norm(self.first(x)))


def test_equals_functional_call_with_other_tensors_tied_weights_and_copies():
    torch.manual_seed(0)
    networks = [Tied(), Tied()]
    encoder = Encoder("router", networks, (4,))
    x = torch.randn(6, 4)
    tensors = {name: value + 0.5 for name, value in encoder.initial().items()}
    assert not any(name.endswith("second.weight") for name in tensors)
    answer = encoder(tensors, x)
    for c, network in enumerate(networks):
        mine = {name.removeprefix(f"router.{c}."): value for name, value in tensors.items() if f"router.{c}." in name}
        expected = functional_call(network.eval(), mine, (x,))
        torch.testing.assert_close(answer[:, c], expected)
        torch.testing.assert_close(encoder(encoder.take(tensors, c), x, only=c)[:, 0], expected)
    assert encoder(encoder.initial(), x).allclose(encoder(encoder.initial(), x))
    assert not encoder(encoder.initial(), x).allclose(answer)


def test_training_moves_the_buffers_it_was_given_and_gradients_reach_the_tensors():
    encoder = Encoder("router", [Tied()], (4,))
    tensors = encoder.initial()
    weight = tensors["router.0.first.weight"].requires_grad_()
    encoder(tensors, torch.randn(6, 4) + 3, training=True).sum().backward()
    assert weight.grad is not None
    assert tensors["router.0.norm.num_batches_tracked"] == 1
    assert tensors["router.0.norm.running_mean"].abs().max() > 0
    assert encoder.initial()["router.0.norm.num_batches_tracked"] == 0


def test_the_resnet_averages_its_last_maps_to_a_grid_or_to_a_point():
    """To a point, where something is no longer matters: rows whose maps are flipped say the same."""
    maps = torch.rand(2, 64, 4, 4)
    for grid, same in ((1, True), (4, False)):
        encoder = build_encoder("predictor", "resnet", (3, 28, 28), 8, copies=1, seed=0, grid=grid)
        assert encoder.initial()["predictor.0.project.weight"].shape == (8, 64 * grid * grid)
        network = encoder.networks()[0]
        network.blocks = nn.Identity()
        network.stem = network.norm = nn.Identity()
        assert torch.allclose(network(maps), network(maps.flip(3)), atol=1e-6) == same
