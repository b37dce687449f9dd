"""NumPy archives, read without unpickling: one a client in a folder, or one with an array of client names."""

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.data.arrays import as_input, require_finite
from fedspm.data.images import UNIT, Ends, bytes_as_values
from fedspm.data.readers.draft import Draft, ReadOptions, text_of
from fedspm.data.readers.splits import SPLITS, refuse_splits

ONE_EACH = "a NumPy archive a client"
TRAIN = {"x_train": "x", "y_train": "y"}
ROLES = {"x", "y", "client", "split", "x_test", "y_test"}
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


def read_archive(path: Path, how: ReadOptions) -> Draft:
    """One archive: x and y, whose each row is (client), and perhaps what it is for (split)."""
    arrays = _by_role(read_npz(path))
    draft = Draft(str(path), "a NumPy archive with an array of clients" if "client" in arrays else ONE_EACH)
    if "client" not in arrays and not how.client:
        found = ", ".join(arrays) or "nothing"
        draft.problems.append(f"{path} holds {found}; expected the arrays x, y and client (and perhaps split)")
        return draft
    _add(draft, path, arrays)
    return draft.finish()


def read_archives(paths: Sequence[Path]) -> Draft:
    """An archive a client: x and y, and perhaps split, or x_test and y_test; or parts of one that has clients."""
    if len(paths) > 1:
        how = "an archive a client has x, y, x_test and y_test, one of all clients x, y, client and split"
        refuse_splits([path.stem for path in paths], f"the archives in {paths[0].parent}", how)
    draft = Draft(str(paths[0].parent), ONE_EACH)
    found = {}
    for file in paths:
        try:
            found[file] = _by_role(read_npz(file))
        except FedSPMError as error:
            draft.problems.append(str(error))
    says = [file for file, arrays in found.items() if "client" in arrays]
    if says and len(says) < len(found):
        silent = next(file for file in found if file not in says)
        draft.problems.append(
            f"{says[0]} says whose each row is (client), {silent} does not; give every archive such an array, or none: "
            "then the name of a file is that of its client"
        )
    elif says:
        draft.form = "parts of a NumPy archive with an array of clients"
    for file in [*found]:
        _add(draft, file, found.pop(file))  # what is not needed of it is freed before the next
    return draft.finish()


def _by_role(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """x_train and y_train are x and y."""
    return {TRAIN.get(name, name): array for name, array in arrays.items()}


def _add(draft: Draft, file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """The rows of one archive; they belong to a client of the archive's name if it does not say to whom."""
    if problem := _wrong(arrays):
        draft.problems.append(f"{file}{problem}")
        return
    if unused := [name for name in arrays if name not in ROLES]:
        draft.remarks.append(f"{file}: not used: {', '.join(unused)}")
    x, y = arrays["x"], arrays["y"]
    clients = (
        [text_of(name) or "" for name in arrays["client"].tolist()] if "client" in arrays else [file.stem] * len(y)
    )
    splits = [(text_of(split) or "").lower() for split in arrays["split"].tolist()] if "split" in arrays else []
    if "" in clients:
        draft.problems.append(f"{file}: row {clients.index('') + 1} has no client")
    if strange := next((split for split in splits if split not in SPLITS), None):
        draft.problems.append(f"{file}: split holds {strange!r}; expected 'train' and 'test'")
    elif "" in splits:
        draft.problems.append(f"{file}: split is empty in row {splits.index('') + 1}; expected 'train' or 'test'")
    where = f"{file}, y" if "client" not in arrays else str(file)
    draft.add(_rows(draft, x, str(file)), draft.labels(y.tolist(), where), clients, splits or ["train"] * len(y))
    if "x_test" in arrays:
        x, labels = arrays["x_test"], draft.labels(arrays["y_test"].tolist(), f"{file}, y_test")
        draft.test[file.stem] = _rows(draft, x, f"{file}, test rows"), labels


def _wrong(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Arrays that are missing, of other lengths than their x, or of which it is not clear whose rows they are."""
    if not {"x", "y"} <= arrays.keys():
        return f" holds {', '.join(arrays) or 'nothing'}; expected x and y, and perhaps x_test and y_test"
    for of, others in (("x", ("y", "client", "split")), ("x_test", ("y_test",))):
        rows = arrays[of].shape[:1] if of in arrays else None
        for name in (each for each in others if each in arrays):
            if arrays[name].ndim != 1 or arrays[name].shape != rows:
                found = f"{of} has shape {arrays[of].shape}" if of in arrays else f"there is no {of}"
                return f": {found} and {name} {arrays[name].shape}; {name} needs one value a row of {of}"
    if "x_test" in arrays and "y_test" not in arrays:
        return ": there is x_test and no y_test; add their labels, or leave x_test out"
    if "x_test" in arrays and ("client" in arrays or "split" in arrays):
        return ": x_test stands beside client or split; put its rows into x, and say 'test' of them in split"
    return None


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
