"""Multiply-adds are those that torch's own counter finds, and no compiler is imported for them."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedspm.nn.build_encoder import build_encoder
from fedspm.nn.multiply_adds import MultiplyAdds


@pytest.mark.parametrize(
    ("name", "shape"), [("resnet", (3, 16, 16)), ("resnet", (1, 28, 28)), ("cnn", (1, 28, 28)), ("mlp", (6,))]
)
@pytest.mark.parametrize("copies", [1, 2])
def test_as_torch_counts_them(name, shape, copies):
    encoder = build_encoder("predictor", name, shape, 8, copies, 0)
    state, x = encoder.initial(), torch.zeros(1, *shape)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        encoder(state, x)
    assert encoder.multiply_adds() == counter.get_total_flops() // 2 > 0


def test_of_attention_and_products_too():
    layer, x = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(1, 5, 8)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer.train()(x)
    with torch.no_grad(), MultiplyAdds() as counted:
        layer.train()(x)
    assert counted.total == counter.get_total_flops() // 2 > 0


def test_the_compiler_is_not_imported():
    code = (
        "import sys; from fedspm.nn.build_encoder import build_encoder as build;"
        "build('predictor', 'mlp', (6,), 8, 1, 0).multiply_adds(); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
