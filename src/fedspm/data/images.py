"""The one place that decodes and encodes images."""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedspm.errors import FedSPMError


def read_image(path: Path, shape: tuple[int, ...]) -> Tensor:
    """(channels, height, width) in [0, 1], scaled to the shape that a model was trained on."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise FedSPMError(f"{path}: the model takes rows of shape {shape}, not images")
    try:
        with Image.open(path) as opened:
            upright = ImageOps.exif_transpose(opened)
            if upright.mode.startswith("I"):  # 16 bits a pixel
                upright = Image.fromarray((np.asarray(upright) / 257).astype(np.uint8))
            upright = upright.convert("RGB" if shape[0] == 3 else "L")
    except FileNotFoundError as error:
        raise FedSPMError(f"there is no image {path}") from error
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        raise FedSPMError(f"{path} cannot be read as an image: {error}") from error
    if upright.size != (shape[2], shape[1]):
        upright = upright.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
    pixels = torch.from_numpy(np.array(upright, dtype=np.float32) / 255)
    return pixels.permute(2, 0, 1) if shape[0] == 3 else pixels[None]


def encode_png(x: Tensor) -> bytes:
    """A (channels, height, width) image in [0, 1] as PNG."""
    pixels = (x.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()
