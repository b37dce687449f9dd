"""The one place that decodes and encodes images."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedspm.errors import DamagedFile, FedSPMError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")  # what data sets are kept in, tried in this order


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


@contextmanager
def decode_rgb(content: bytes | BufferedIOBase, where: str) -> Iterator[Image.Image]:
    """An encoded image of a data set in three channels; a damaged one is named."""
    try:
        file = io.BytesIO(content) if isinstance(content, bytes) else cast(IO[bytes], content)
        with Image.open(file, formats=FORMATS) as opened:
            image = opened if opened.mode == "RGB" else opened.convert("RGB")
            image.load()
            yield image
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise DamagedFile(f"{where} has an image that cannot be read, it is damaged or cut off: {error}") from error


def encode_png(x: Tensor) -> bytes:
    """A (channels, height, width) image in [0, 1] as PNG."""
    pixels = (x.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()
