"""Pixels in arrays are read as what they mean, or refused with the range they have; any image can be shown."""

import io

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from fedspm.base.errors import FedSPMError
from fedspm.data.images import encode_png, image_size, read_image
from fedspm.report.figures import show_image

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 9, 3), np.uint8)
SIXTEEN = np.minimum(PIXELS.astype(int) * 257 + 100, 65535).astype(np.uint16)  # bits a pixel


@pytest.mark.parametrize(
    "given",
    [
        PIXELS.astype(np.int64),
        SIXTEEN,
        SIXTEEN.astype(">u2"),
        PIXELS / 255,
        (PIXELS / 255).astype(np.float32),
        (PIXELS / 255).tolist(),
        torch.from_numpy(PIXELS),
        torch.from_numpy(PIXELS).permute(2, 0, 1) / 255,
        np.dstack([PIXELS, PIXELS[..., 0]]),
    ],
    ids=["int64", "uint16", "big-endian", "float64", "float32", "lists", "torch", "torch, first", "rgba"],
)
def test_the_same_pixels_in_many_spellings(given):
    assert torch.equal(read_image(given, (3, 8, 9), "it"), read_image(PIXELS, (3, 8, 9)))
    assert image_size(None, [[given]]) == (8, 9)


def test_one_channel_and_truth_values():
    grey = read_image(PIXELS[..., 0], (1, 8, 9))
    assert torch.equal(read_image(PIXELS[..., :1], (1, 8, 9), "it"), grey)
    assert torch.equal(read_image(PIXELS[None, ..., 0], (1, 8, 9), "it"), grey)
    assert read_image(PIXELS[..., 0] > 127, (1, 8, 9), "it").unique().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (PIXELS.astype(int) * 4, "its values go from 0 to 1020; expected whole numbers from 0 to 255"),
        (PIXELS.astype(float), "its values go from 0 to 255; expected .* fractions from 0 to 1"),
        (PIXELS / 127.5 - 1, "its values go from -1 to 1;"),
        (np.full((8, 9), np.nan), "its values go from nan to nan;"),
        ([["a", "b"]], "it holds <U1, not numbers"),
    ],
)
def test_pixels_that_mean_nothing_are_refused(given, sentence):
    with pytest.raises(FedSPMError, match=f"row 3 cannot be read as an image: {sentence}"):
        read_image(given, (3, 8, 9), "row 3")


def test_image_files_are_not_for_every_model():
    for shape, instead in (((7,), "give a table"), ((2, 8, 9), r"give an \.npz archive")):
        with pytest.raises(FedSPMError, match=f"takes rows of shape .*, not image files; {instead}"):
            read_image(PIXELS, shape, "it")


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_images_of_any_number_of_channels_can_be_shown(channels):
    x = torch.rand(channels, 8, 9)
    axes = Figure().subplots()
    show_image(axes, x)
    with Image.open(io.BytesIO(encode_png(x))) as picture:
        shown = np.asarray(picture) / 255
    if channels in (2, 5):
        x = x[:1]
    assert axes.images[0].get_array().shape == (x.permute(1, 2, 0).shape if len(x) > 1 else (8, 9))
    np.testing.assert_allclose(shown, x.permute(1, 2, 0).squeeze(2).numpy(), atol=0.5 / 255 + 1e-6)


def test_files_with_more_than_8_bits_are_read_as_arrays_are(tmp_path):
    fractions = np.random.default_rng(0).random((8, 9)).astype(np.float32)
    sixteen = (fractions * 65535).astype(np.uint16)
    for pixels, given in ((fractions, fractions), (sixteen, sixteen), (sixteen.astype(np.int32), sixteen)):
        Image.fromarray(pixels).save(tmp_path / "a.tif")
        assert torch.equal(read_image(tmp_path / "a.tif", (1, 8, 9)), read_image(given, (1, 8, 9)))
        assert read_image(given, (1, 8, 9)).max() > 0.9


@pytest.mark.parametrize("pixels", [np.full((8, 9), 70000, np.int32), np.full((8, 9), 17.0, np.float32)])
def test_values_that_no_image_has_are_refused(tmp_path, pixels):
    Image.fromarray(pixels).save(tmp_path / "a.tif")
    with pytest.raises(FedSPMError, match=r"a\.tif cannot be read as an image: its values go from"):
        read_image(tmp_path / "a.tif", (1, 8, 9))
