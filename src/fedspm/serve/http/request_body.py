"""From the body of a request to rows: an image, a form with images, JSON, or tensors."""

import logging
import math
import warnings
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from pydantic_core import from_json
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import metadata_of
from fedspm.data.arrays import as_input, require_finite
from fedspm.data.images import are_pixels, bytes_as_values, not_pixels, read_image
from fedspm.serve.bundle import TENSORS, Card, unpack
from fedspm.serve.http import columns
from fedspm.serve.http.image_header import SERVED, require_cheap
from fedspm.serve.http.in_flight import Readers
from fedspm.serve.http.limits import Limits, read_body
from fedspm.serve.http.problem import HTTPProblem

warnings.filterwarnings("ignore", module=r"PIL\.")  # a file can make it warn of thousands of things, each with a line
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it logs bytes of what it cannot read
SHORT, LONG = 32 * 1024, 512 * 1024  # bytes: up to the first read at once, beyond the second by the thread for much
MANY_PIXELS = 1_000_000  # decoded in some ten milliseconds
IN_A_WORD = 4  # commas or quotes that the text of a cell may have, those around it included
KNOWN = f"image/*, multipart/form-data, application/json or {TENSORS}"
FORM = 'the body must be {"x": …}, a row or a list of rows of numbers'


@dataclass(frozen=True)
class Query:
    x: Tensor  # (n, *shape)
    single: bool  # one row was asked for, not a batch of one


async def read_query(request: Request, card: Card, limits: Limits, readers: Readers, seconds: float) -> Query:
    """The rows of a request, in whichever form they were sent, if they arrive and are read within so many seconds.
    Threads unpack long bodies and all images (a short file may be a large image): others are served meanwhile."""
    async with readers.bodies.reading(seconds) as arriving:
        body = await read_body(request, limits.body, arriving.took)
        arriving.arrived = True
        content_type = request.headers.get("content-type", "")
        kind = content_type.partition(";")[0].strip().lower()
        read: Callable[[Limits], tuple[Any, bool]]
        if kind.startswith("image/"):
            read = partial(_images, [body], True, card)
        elif kind == "multipart/form-data":
            read = partial(_images, *await _form(content_type, body, limits.batch), card)
        elif kind == "application/json":
            read = partial(_json, body, card)
        elif kind == TENSORS:
            read = partial(_tensors, body, card)
        else:
            raise HTTPProblem(415, f"the content type is {kind!r}; known are {KNOWN}")
        images = kind not in {"application/json", TENSORS}
        if not images and len(body) <= SHORT:
            return _checked(read, card, limits)
        if len(body) <= LONG:
            try:
                quick = replace(limits, pixels=min(limits.pixels, MANY_PIXELS)) if images else limits
                return await readers.read(partial(_checked, read, card, quick), large=False)
            except TooManyPixels:
                if limits.pixels <= MANY_PIXELS:
                    raise
        return await readers.read(partial(_checked, read, card, limits), large=True)


def _checked(read: Callable[[Limits], tuple[Any, bool]], card: Card, limits: Limits) -> Query:
    rows, single = read(limits)
    if tuple(rows.shape[1:]) != card.shape:
        shape = list(rows.shape[1:] if single else rows.shape)
        raise HTTPProblem(422, f"x has shape {shape}; a row has shape {list(card.shape)}, a batch one dimension more")
    if not 1 <= len(rows) <= limits.batch:
        raise HTTPProblem(
            413 if len(rows) else 422, f"a request has from 1 to {limits.batch} rows, this has {len(rows)}"
        )
    try:
        x = as_input(rows, card.shape)
        require_finite(x, "x", missing=card.table is not None)
    except FedSPMError as error:
        raise HTTPProblem(422, str(error)) from error
    return Query(x, single)


async def _form(content_type: str, body: bytes, most: int) -> tuple[list[bytes], bool]:
    """The files of a form: one named `image`, or a batch, all named `images`."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(Headers({"content-type": content_type}), stream(), max_files=most, max_fields=8)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise HTTPProblem(400, f"the form cannot be read: {getattr(error, 'message', error)}") from error
    try:
        names = [name for name, _ in form.multi_items()]
        files = [file for _, file in form.multi_items() if isinstance(file, UploadFile)]
        if len(files) < len(names) or (names != ["image"] and set(names) != {"images"}):
            raise HTTPProblem(422, "a form has one file named `image`, or files that are all named `images`")
        return [await file.read() for file in files], names == ["image"]
    finally:
        await form.close()


class TooManyPixels(HTTPProblem):
    """More than a request, or than the thread for small images, may have."""


class Pixels:
    """How many pixels the images of a request may still have."""

    def __init__(self, most: int):
        self._left = self._most = most

    def take(self, pixels: int) -> None:
        self._left -= pixels
        if self._left < 0:
            raise TooManyPixels(413, f"the images have more than {self._most} pixels together; scale them down first")


def _images(files: list[bytes], single: bool, card: Card, limits: Limits) -> tuple[Tensor, bool]:
    if not are_pixels(card.range):
        raise HTTPProblem(415, f"the clients' rows have {not_pixels(card.range)}; send JSON or tensors")
    pixels = Pixels(limits.pixels)
    try:
        return torch.stack([_image(file, card, pixels) for file in files]), single
    except HTTPProblem:
        raise
    except FedSPMError as error:
        raise HTTPProblem(422, str(error)) from error


def _image(file: bytes, card: Card, pixels: Pixels) -> Tensor:
    try:
        require_cheap(file)
    except FedSPMError as error:
        raise FedSPMError(f"the image cannot be read as an image: {error}") from error
    return read_image(file, card.shape, "the image", pixels.take, SERVED)


def _json(body: bytes, card: Card, limits: Limits) -> tuple[np.ndarray, bool]:
    if len(body) > limits.json:
        raise HTTPProblem(413, f"JSON may have {limits.json} bytes; send fewer rows, or tensors ({TENSORS})")
    _require_few(body, card, limits.batch)
    try:
        content = from_json(body)
    except ValueError as error:
        raise HTTPProblem(400, f"the body is not JSON: {error}") from error
    if not isinstance(content, dict) or set(content) != {"x"}:
        raise HTTPProblem(422, FORM)
    x = content["x"]
    if isinstance(x, dict) or (isinstance(x, list) and any(isinstance(row, dict) for row in x)):
        return _rows(columns.rows_from_objects(x, card.table), card)
    if body.count(b'"') > len('""'):  # one long string would make NumPy give every other one its length
        raise HTTPProblem(422, FORM)
    try:
        array = _as_array(x)
    except (ValueError, OverflowError, RecursionError):
        array = np.asarray(None)
    if array.dtype.kind not in "iuf":
        raise HTTPProblem(422, "x must be an array of numbers in which all rows have the same shape")
    return _rows(columns.vectors_from_array(array, card.table), card)


def _as_array(x: Any) -> np.ndarray:
    """As NumPy makes it, row by row: between two rows the other threads get on with their work."""
    if isinstance(x, list) and x and all(isinstance(row, list) for row in x):
        return np.stack([np.asarray(row) for row in x])
    return np.asarray(x)


def _require_few(body: bytes, card: Card, batch: int) -> None:
    """Refuse what cannot be rows before it is parsed, which nothing interrupts: lists of three bytes each take a
    hundred of memory. Names of columns may occur once per row, with whatever commas and brackets they have."""
    shape, names = card.shape, columns.joined_names(card.columns)
    words = 0 if card.table is None or card.table.takes_arrays else len(card.table.columns)  # cells that may be text
    numbers = batch * (math.prod(shape) + names.count(",") + IN_A_WORD * words)
    lists = 1 + batch * (sum(math.prod(shape[:depth]) for depth in range(len(shape))) + names.count("[") + words)
    quotes = len('""') + batch * (names.count('"') + IN_A_WORD * words)
    if body.count(b",") >= numbers or body.count(b"[") > lists or (names and body.count(b'"') > quotes):
        raise HTTPProblem(
            413, f"a request has from 1 to {batch} rows of shape {list(shape)}, this has more than they need"
        )
    if body.count(b'"') > quotes:
        raise HTTPProblem(422, columns.NAMELESS if body.count(b"{") > 1 else FORM)


def _tensors(body: bytes, card: Card, limits: Limits) -> tuple[Tensor, bool]:
    try:
        tensors = unpack(body, columns.header_limit(card.columns))
    except FedSPMError as error:
        raise HTTPProblem(400, str(error)) from error
    if set(tensors) != {"x"}:
        raise HTTPProblem(422, "the body must have one tensor, named x")
    x = columns.tensor_in_order(tensors["x"], metadata_of(body), card.table)
    x = columns.vectors_from_array(x, card.table)
    rows, single = _rows(x, card)
    return bytes_as_values(rows, x, card.range), single


def _rows(x: Any, card: Card) -> tuple[Any, bool]:
    single = tuple(x.shape) == card.shape
    return (x[None] if single else x), single
