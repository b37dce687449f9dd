"""NumPy archives, read without unpickling: one a client in a folder, or one with an array of client names."""

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from fedspm.data.arrays import as_input, require_finite
from fedspm.data.draft import Draft, Reading, text_of
from fedspm.data.images import UNIT, Ends, bytes_as_values
from fedspm.data.splits import refuse_splits
from fedspm.errors import DamagedFile, FedSPMError

LARGEST = 1 << 36  # bytes of one array; a header that promises more is not believed


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive, by lower-case name; arrays of Python objects are refused."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.filename.endswith(".npy") and member.file_size < LARGEST:
                    with archive.open(member) as file:
                        content = io.BytesIO(file.read())
                    arrays[member.filename.removesuffix(".npy").lower()] = np.lib.format.read_array(
                        content, allow_pickle=False
                    )
    except FileNotFoundError as error:
        raise FedSPMError(f"there is no file {path}") from error
    except ValueError as error:
        if "Object arrays" in str(error):
            raise FedSPMError(
                f"{path} holds an array of Python objects, which is never unpickled; save strings as "
                "np.asarray(names, dtype=str) and rows of equal length as one array"
            ) from error
        raise DamagedFile(f"{path} cannot be read as a NumPy archive: {error}") from error
    except (OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DamagedFile(f"{path} cannot be read as a NumPy archive: {error}") from error
    return arrays


def read_archive(path: Path, how: Reading) -> Draft:
    """One archive with the arrays x, y and client, and perhaps split: a row each."""
    arrays = read_npz(path)
    if how.client and "client" not in arrays:
        return read_archives([path])
    draft = Draft(str(path), "a NumPy archive with an array of clients")
    if not {"x", "y", "client"} <= arrays.keys():
        found = ", ".join(arrays) or "nothing"
        draft.problems.append(f"{path} holds {found}; expected the arrays x, y and client (and perhaps split)")
        return draft
    x, y, client = arrays["x"], arrays["y"], arrays["client"]
    split = arrays.get("split", np.full(len(client) if client.ndim else 0, "train"))
    if {a.shape[:1] for a in (x, y, client, split)} != {x.shape[:1]} or {a.ndim for a in (y, client, split)} != {1}:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in arrays.items())
        draft.problems.append(f"{path}: the arrays have shapes {shapes}; y, client and split need one value a row of x")
    elif strange := set(np.unique(split.astype(str))) - {"train", "test"}:
        draft.problems.append(f"{path}: split holds {sorted(strange)[0]!r}; expected 'train' and 'test'")
    else:
        names = [text_of(name) or "" for name in client.tolist()]
        if "" in names:
            draft.problems.append(f"{path}: row {names.index('') + 1} has no client")
        draft.add(_rows(draft, x, str(path)), draft.labels(y.tolist(), str(path)), names, split.astype(str).tolist())
    return draft.finish()


def read_archives(paths: Sequence[Path]) -> Draft:
    """An archive a client: x and y, and perhaps x_test and y_test."""
    if len(paths) > 1:
        how = "an archive a client has x, y, x_test and y_test, one of all clients x, y, client and split"
        refuse_splits([path.stem for path in paths], f"the archives in {paths[0].parent}", how)
    draft = Draft(str(paths[0].parent), "a NumPy archive a client")
    for file in paths:
        try:
            arrays = read_npz(file)
        except FedSPMError as error:
            draft.problems.append(str(error))
            continue
        arrays |= {name: arrays[f"{name}_train"] for name in "xy" if f"{name}_train" in arrays}
        if not {"x", "y"} <= arrays.keys():
            draft.problems.append(
                f"{file} holds {', '.join(arrays) or 'nothing'}; expected x and y, and perhaps x_test and y_test"
            )
            continue
        for part, ending in ((draft.train, ""), (draft.test, "_test")):
            if {f"x{ending}", f"y{ending}"} <= arrays.keys():
                x, y = arrays[f"x{ending}"], arrays[f"y{ending}"]
                if y.ndim != 1 or x.shape[:1] != y.shape:
                    draft.problems.append(
                        f"{file}: x{ending} has shape {x.shape} and y{ending} {y.shape}; y needs one label a row"
                    )
                else:
                    labels = draft.labels(y.tolist(), f"{file}, y{ending}")
                    part[file.stem] = _rows(draft, x, f"{file}{ending and ', test rows'}"), labels
    return draft.finish()


def _rows(draft: Draft, x: np.ndarray, where: str) -> Tensor | np.ndarray:
    """Rows for training; what is wrong with them is said here, where they are still numbered as in their file."""
    try:
        return input_of(x, where)
    except FedSPMError as error:
        draft.problems.append(str(error))
        return x


def input_of(x: np.ndarray, where: str, shape: Sequence[int] | None = None, ends: Ends = UNIT) -> Tensor:
    """The array x of an archive, with the channels of images first and bytes as values from 0 to 1.

    Queries are read as training data is. `shape` is that of the model's rows, which is not to be turned around, and
    `ends` are their smallest and largest value.
    """
    rows = as_input(x if shape is not None and x.shape[1:] == tuple(shape) else _channels_first(x), shape, where)
    require_finite(rows, where)
    return bytes_as_values(rows, x, ends)


def _channels_first(x: np.ndarray) -> np.ndarray:
    """Vectors as they are; RGBA loses its opacity, as it does in image files."""
    if x.ndim == 3:
        return x.reshape(len(x), 1, *x.shape[1:])
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, x.shape[3]):
        return np.moveaxis(x, 3, 1)[:, :3]
    return x
