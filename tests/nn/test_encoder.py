"""An encoder is a pure function of its tensors, whatever module it is made of."""

import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedspm.base.errors import FedSPMError
from fedspm.nn.build_encoder import build_encoder
from fedspm.nn.encoder import Encoder


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


def test_what_a_network_came_with_frozen_is_fixed_and_the_same_in_all_copies():
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    network[0].requires_grad_(False)
    encoder = build_encoder("router", network, (4,), 3, copies=2, seed=0)
    start = encoder.initial()
    assert encoder.frozen == tuple(f"router.{c}.0.{name}" for c in (0, 1) for name in ("weight", "bias"))
    assert set(encoder.fixed) == {*encoder.frozen, *encoder.buffers}
    for c in (0, 1):
        assert torch.equal(start[f"router.{c}.0.weight"], network[0].weight)
    assert not torch.equal(start["router.0.2.weight"], start["router.1.2.weight"])
    assert encoder.size() == 2 * sum(value.numel() for value in network.parameters())


def test_later_copies_of_a_given_network_start_anew_and_that_is_said():
    network = nn.Linear(4, 3)
    with pytest.warns(UserWarning, match="only the first of the 2 predictor networks keeps the weights"):
        start = build_encoder("predictor", network, (4,), 3, copies=2, seed=0).initial()
    assert torch.equal(start["predictor.0.weight"], network.weight)
    assert not torch.equal(start["predictor.1.weight"], network.weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_encoder("predictor", network, (4,), 3, copies=1, seed=0)
        build_encoder("predictor", network.requires_grad_(False), (4,), 3, copies=2, seed=0)


class Attending(nn.Module):
    """Attention over the features, with a position and a mask."""

    def __init__(self, dropout=0.0, **kept):
        super().__init__()
        self.place = nn.Parameter(torch.randn(4, 8))
        self.attention = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1), **kept)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        tokens = x[:, :, None] + self.place
        return self.out(self.attention(tokens, tokens, tokens, attn_mask=self.mask, need_weights=False)[0].mean(1))


def test_a_constant_of_a_network_is_none_of_its_tensors():
    encoder = build_encoder("predictor", Attending(persistent=False), (4,), 3, copies=1, seed=0)
    assert encoder.buffers == ()
    assert "predictor.0.mask" not in encoder.initial()
    tensors = {name: value.requires_grad_() for name, value in encoder.initial().items()}
    answer = encoder(tensors, torch.randn(5, 4), training=True)
    answer.sum().backward()
    assert torch.isfinite(answer).all()
    assert tensors["predictor.0.place"].grad is not None


def test_a_mask_that_would_be_averaged_is_refused():
    with pytest.raises(FedSPMError, match=r"a value that is not finite in predictor\.0\.mask, .* persistent=False"):
        build_encoder("predictor", Attending(), (4,), 3, copies=1, seed=0)


def test_a_complex_buffer_and_answers_in_double_precision_are_refused():
    turning = nn.Linear(4, 3)
    turning.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))
    with pytest.raises(FedSPMError, match=r"complex numbers in predictor\.0\.turn"):
        build_encoder("predictor", turning, (4,), 3, copies=1, seed=0)

    class Double(nn.Linear):
        def forward(self, x):
            return super().forward(x).double()

    with pytest.raises(FedSPMError, match=r"answers torch\.float64; it must answer torch\.float32"):
        build_encoder("predictor", Double(4, 3), (4,), 3, copies=1, seed=0)


def test_attention_starts_anew_and_what_cannot_is_named():
    network = Attending(persistent=False)
    with pytest.warns(UserWarning, match=r"start apart, except in parts without reset_parameters\(\): the whole"):
        start = build_encoder("predictor", network, (4,), 3, copies=2, seed=0).initial()
    assert not torch.equal(start["predictor.0.attention.in_proj_weight"], start["predictor.1.attention.in_proj_weight"])
    assert torch.equal(start["predictor.0.place"], start["predictor.1.place"])


@pytest.mark.parametrize(
    ("network", "drops"),
    [
        (Attending(persistent=False), False),
        (Attending(0.5, persistent=False), True),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)), False),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1)), True),
    ],
)
def test_dropout_is_told_where_there_is_some(network, drops):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build_encoder("predictor", network, (4,), 3, copies=1, seed=0)
    assert any("has dropout" in str(each.message) for each in caught) == drops


@pytest.mark.parametrize("shape", [(1, 5, 5), (3, 1, 100), (1, 6, 6), (1, 7, 7), (2, 7, 40)])
def test_auto_finds_an_encoder_for_images_of_any_extent(shape):
    for role in ("predictor", "router"):
        encoder = build_encoder(role, "auto", shape, 3, copies=1, seed=0)
        assert encoder(encoder.initial(), torch.zeros(2, *shape)).shape == (2, 1, 3)
    if min(shape[1:]) < 7:
        with pytest.raises(FedSPMError, match="'cnn' takes images of at least 7 × 7 pixels"):
            build_encoder("router", "cnn", shape, 3, copies=1, seed=0)


class Raising(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error


@pytest.mark.parametrize("error", [KeyError("image"), ValueError(), ZeroDivisionError("by zero\nand more")])
def test_a_network_that_raises_gets_a_sentence(error):
    with pytest.raises(
        FedSPMError, match=rf"router encoder does not take rows of shape .*: {type(error).__name__}"
    ) as it:
        build_encoder("router", Raising(error), (4,), 3, copies=1, seed=0)
    assert "\n" not in str(it.value)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("def make(:", "cannot be imported: SyntaxError"),
        ("raise RuntimeError('no GPU here')", "cannot be imported: RuntimeError: no GPU here"),
        ("make = {}['x']", "cannot be imported: KeyError"),
        ("def other(): ...", "cannot be imported: AttributeError"),
        ("def make(shape, dimension): raise ValueError('odd')", r"for rows of shape \(4,\): ValueError: odd"),
        ("def make(shape, dimension): return {}[shape]", r"for rows of shape \(4,\): KeyError"),
        ("def make(shape, dimension): return 1", "made a int, not an nn.Module"),
    ],
)
def test_a_factory_that_fails_gets_the_sentence_of_where_it_fails(tmp_path, monkeypatch, module, sentence):
    name = f"factory_{abs(hash(module))}"
    (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FedSPMError, match=sentence):
        build_encoder("router", f"{name}:make", (4,), 3, copies=1, seed=0)
