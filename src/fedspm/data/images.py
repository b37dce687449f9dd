"""The one place that decodes and encodes images."""

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from fedspm.base.errors import DamagedFile, FedSPMError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # tried in this order; Pillow knows many more
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
UNIT = (0.0, 1.0)  # smallest and largest value of an image that is read from a file
Ends = Sequence[float] | None  # smallest and largest value of some rows; None: not known
SIDE = 64  # images of different or larger sizes are scaled to this, unless a size is given
ROUNDING = 1e-3  # by which fractions may lie outside 0 to 1: less than half a byte
BROKEN = (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError, TypeError)
Out = TypeVar("Out")


def read_image(
    source: Any,
    shape: tuple[int, ...],
    name: str | None = None,
    admit: Callable[[int], object] = lambda pixels: None,
    formats: tuple[str, ...] = FORMATS,
) -> Tensor:
    """(channels, height, width) in [0, 1], scaled to the shape that a model was trained on.

    The source is a path, the bytes of a file, a Pillow image or an array of pixels (NumPy, torch, nested lists);
    `name` is what errors call it. `admit` sees how many pixels it has before any is unpacked; files of
    other `formats` are not.
    """
    name = name or str(source)
    if len(shape) != 3 or shape[0] not in (1, 3):
        other = "give a table" if len(shape) == 1 else "give an .npz archive with an array x"
        raise FedSPMError(f"{name}: the model takes rows of shape {tuple(shape)}, not image files; {other}")
    try:
        with _opened(source, formats) as opened:
            admit(opened.width * opened.height)
            upright = ImageOps.exif_transpose(opened)
            if upright.mode[0] in "IF":  # whole numbers of 16 bits, or fractions
                upright = Image.fromarray(_as_bytes(_of_file(np.asarray(upright))))
            upright = upright.convert("RGB" if shape[0] == 3 else "L")
            if upright.size != (shape[2], shape[1]):
                upright = upright.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
    except FedSPMError:
        raise
    except FileNotFoundError as error:
        raise FedSPMError(f"there is no image {name}") from error
    except Exception as error:  # what a damaged or hostile file makes Pillow raise is not to be listed
        raise FedSPMError(f"{name} cannot be read as an image: {_reason(error, formats)}") from error
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


def read_images(
    sources: Any, names: Sequence[str], size: tuple[int, int]
) -> tuple[Tensor, list[int], list[FedSPMError]]:
    """Images in three channels and one size, the positions of those that could be read, and errors of the others.

    The sources are a list, a tuple, or a column of a data set that decodes an element when it is asked for it.
    """
    height, width = size
    x = torch.empty(len(sources), 3, height, width, memory_format=torch.channels_last)

    def read(j: int) -> FedSPMError | None:
        try:
            x[j] = read_image(sources[j], (3, height, width), names[j])
        except FedSPMError as error:
            return error
        return None

    errors = list(_each(read, sources))
    kept = [j for j, error in enumerate(errors) if error is None]
    return x if len(kept) == len(x) else x[kept], kept, [error for error in errors if error is not None]


def image_size(side: int | None, batches: Sequence[Any]) -> tuple[int, int]:
    """(height, width): what is asked for; if nothing is, the images' own if all are alike and at most 64, else 64."""
    if side:
        return side, side
    sizes = {each for sources in batches for each in _each(partial(_size, sources), sources)} - {None}
    only = sizes.pop() if len(sizes) == 1 else None
    return only if only and max(only) <= SIDE else (SIDE, SIDE)


def are_pixels(ends: Ends) -> bool:
    """Are these the ends of values as image files are read, from 0 to 1, give or take some rounding?"""
    return ends is not None and ends[0] >= -0.01 and ends[1] <= 1.01


def not_pixels(ends: Ends) -> str:
    """What else they are."""
    known = f"values from {ends[0]:g} to {ends[1]:g}" if ends else "values that are not known here"
    return f"{known}, and image files have values from 0 to 1"


def bytes_as_values(rows: Tensor, given: Any, ends: Ends = UNIT) -> Tensor:
    """Images that were given as bytes have values from 0 to 1, as image files have; unless the rows that a model was
    trained on had others: it was given bytes as they are, and gets them so. Vectors are never changed."""
    were_bytes = str(getattr(given, "dtype", "")).removeprefix("torch.") == "uint8"
    if not (were_bytes and rows.ndim == 4 and are_pixels(ends)):
        return rows
    return rows.div_(255) if rows.is_floating_point() else rows / 255  # floats that were bytes are a copy already


def encode_png(x: Tensor) -> bytes:
    """A (channels, height, width) image in [0, 1] as PNG; of channels that are no colours, the first."""
    shown = x if x.shape[0] in (1, 3, 4) else x[:1]
    pixels = (shown.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _opened(source: Any, formats: tuple[str, ...] = FORMATS) -> Image.Image:
    if isinstance(source, Image.Image):
        return source.copy()  # closing a copy leaves the caller's image open
    if isinstance(source, dict):  # how Hugging Face writes an image: its bytes, or where it lies
        source = source.get("bytes") or Path(source.get("path") or "")
    if isinstance(source, Path):
        return Image.open(source, formats=formats)
    if isinstance(source, bytes | bytearray | memoryview):
        return Image.open(io.BytesIO(source), formats=formats)
    if isinstance(source, Tensor):
        source = source.numpy(force=True)
    if isinstance(source, list | np.ndarray):
        return Image.fromarray(_as_bytes(_channels_last(np.asarray(source))))
    raise TypeError(f"a {type(source).__name__} is not an image")


def _channels_last(pixels: np.ndarray) -> np.ndarray:
    """(height, width) or (height, width, channels), as Pillow takes them; torch's data sets have the channels first."""
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] > 4:
        pixels = np.moveaxis(pixels, 0, 2)
    return pixels[:, :, 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


def _of_file(pixels: np.ndarray) -> np.ndarray:
    """What Pillow has as 32 bits is of 16 in the file, if it is an image at all."""
    if pixels.dtype.kind == "f" or pixels.dtype == np.uint16:
        return pixels
    low, high = int(pixels.min()), int(pixels.max())
    if low < 0 or high > np.iinfo(np.uint16).max:
        raise ValueError(f"its values go from {low} to {high}; expected 8 or 16 bits a pixel, or fractions from 0 to 1")
    return pixels.astype(np.uint16)


def _as_bytes(pixels: np.ndarray) -> np.ndarray:
    """Whole numbers from 0 to 255 as they are, 16 bits a pixel as in a file, fractions from 0 to 1 times 255."""
    kind = pixels.dtype.kind
    if pixels.dtype == np.uint8:
        return pixels
    if kind == "u" and pixels.dtype.itemsize == 2:
        return (pixels / 257).astype(np.uint8)
    if kind not in "biuf":
        raise ValueError(f"it holds {pixels.dtype}, not numbers")
    low, high, most = float(pixels.min()), float(pixels.max()), 255 if kind in "iu" else 1
    if not (low >= -ROUNDING and high <= most + ROUNDING):  # which NaN is not either
        raise ValueError(
            f"its values go from {low:g} to {high:g}; expected whole numbers from 0 to 255, or fractions from 0 to 1"
        )
    return np.rint(pixels * (255 / most)).astype(np.uint8)


def _size(sources: Any, j: int) -> tuple[int, int] | None:
    try:
        with _opened(sources[j]) as image:  # reads no more than the header of a file
            return image.height, image.width
    except BROKEN:
        return None  # named when it is decoded


def _each(function: Callable[[int], Out], sources: Any) -> Iterator[Out]:
    """function(j) of every source; in threads if they are at hand, because Pillow frees the interpreter to decode."""
    if not isinstance(sources, list | tuple):
        yield from map(function, range(len(sources)))  # a column of a data set, which decodes when it is asked
    else:
        with ThreadPoolExecutor() as pool:
            yield from pool.map(function, range(len(sources)))


def _reason(error: BaseException, formats: Sequence[str]) -> str:
    """Without the address of a buffer, which says nothing to anybody."""
    return f"it is none of {', '.join(formats)}" if "<_io.BytesIO" in str(error) else str(error)
