"""The official CIFAR archives are pickles of a dictionary of lists and one NumPy array. This reads those and no others.

Nothing that a pickle names is ever looked up or called. The few names that stand in these files mean things of this
module, which keep what they are given; any other name is refused.
"""

import math
import pickle
from io import BufferedIOBase
from typing import Any, cast

import numpy as np

from fedspm.base.errors import DamagedFile

PIECE = 1 << 20


class _Kind:
    """numpy.dtype"""

    def __init__(self, code: str | bytes, *_: object):
        self.code = code.decode("ascii") if isinstance(code, bytes) else code

    def __setstate__(self, _: object) -> None: ...


class _Array:
    """numpy.ndarray: shape, type and bytes."""

    def __init__(self, *_: object): ...

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Kind, bool, bytes | bytearray]) -> None:
        _, self.shape, self.kind, self.by_columns, self.content = state

    def array(self) -> np.ndarray:
        if (
            self.kind.code not in ("u1", "|u1", "uint8")
            or self.by_columns
            or not isinstance(self.content, bytes | bytearray)
        ):
            raise ValueError("its array does not hold unsigned bytes, row by row")
        if len(self.content) != math.prod(self.shape):
            raise ValueError(f"its array promises {self.shape} bytes and holds {len(self.content)}")
        return np.frombuffer(self.content, np.uint8).reshape(self.shape)


def _latin1(text: str, encoding: str) -> bytes:
    """_codecs.encode: how Python 3 writes bytes for Python 2."""
    if encoding != "latin1":
        raise ValueError(f"bytes encoded as {encoding!r}")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _latin1,
}


class _InPieces:
    """A long string is read piece by piece: what reads archives would hold it twice."""

    def __init__(self, file: BufferedIOBase):
        self._file = file
        self.readline = file.readline

    def read(self, size: int) -> bytes | bytearray:
        if size <= PIECE:
            return self._file.read(size)
        content, held = bytearray(size), 0
        while held < size:
            piece = self._file.read(min(PIECE, size - held))
            if not piece:
                raise EOFError
            content[held : held + len(piece)] = piece
            held += len(piece)
        return content


class _Restricted(pickle._Unpickler):
    """The one written in Python: the other one holds a pickled array twice."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which has no business in these files")
        return ADMITTED[module, name]


def read_pickle(file: BufferedIOBase, where: str) -> dict[str, Any]:
    """A dictionary of numbers, strings, lists and arrays of bytes."""
    try:
        found = _Restricted(cast(Any, _InPieces(file)), encoding="bytes").load()
        plain = {key.decode("ascii") if isinstance(key, bytes) else key: value for key, value in found.items()}
        return {key: value.array() if isinstance(value, _Array) else value for key, value in plain.items()}
    except Exception as error:  # a damaged pickle fails in any way it likes
        raise DamagedFile(
            f"{where} is not a batch of the official CIFAR archive, or is damaged: {error or type(error).__name__}"
        ) from error
