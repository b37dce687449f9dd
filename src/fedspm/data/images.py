"""The one place that decodes and encodes images."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedspm.errors import FedSPMError

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")  # what is decoded; Pillow knows many more


def read_image(path: Path, shape: tuple[int, ...]) -> Tensor:
    """(channels, height, width) in [0, 1], scaled to the shape that a model was trained on."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise FedSPMError(f"there is no image {path}") from error
    except OSError as error:
        raise FedSPMError(f"{path} cannot be read as an image: {error}") from error
    return decode_image(content, shape, str(path))


def decode_image(
    content: bytes, shape: tuple[int, ...], name: str, admit: Callable[[int], object] = lambda pixels: None
) -> Tensor:
    """The same from the bytes of an image file. `admit` sees how many pixels it has before any is unpacked."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise FedSPMError(f"{name}: the model takes rows of shape {shape}, not images")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            admit(opened.width * opened.height)
            upright = ImageOps.exif_transpose(opened)
            if upright.mode.startswith("I"):  # 16 bits a pixel
                upright = Image.fromarray((np.asarray(upright) / 257).astype(np.uint8))
            upright = upright.convert("RGB" if shape[0] == 3 else "L")
            if upright.size != (shape[2], shape[1]):
                upright = upright.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
    except FedSPMError:
        raise
    except UnidentifiedImageError as error:
        raise FedSPMError(f"{name} cannot be read as an image; known are {', '.join(FORMATS)}") from error
    except Exception as error:  # what a damaged or hostile file makes Pillow raise is not to be listed
        raise FedSPMError(f"{name} cannot be read as an image: {error}") from error
    pixels = torch.from_numpy(np.array(upright, dtype=np.float32) / 255)
    return pixels.permute(2, 0, 1) if shape[0] == 3 else pixels[None]


def encode_png(x: Tensor) -> bytes:
    """A (channels, height, width) image in [0, 1] as PNG."""
    pixels = (x.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()
