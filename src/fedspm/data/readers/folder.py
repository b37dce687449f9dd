"""Images in folders: PATH/CLIENT/CLASS/image.png, with train/ and test/ above the classes or above the clients."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedspm.data.images import ENDINGS, image_size, read_images
from fedspm.data.readers.draft import Draft, ReadOptions
from fedspm.data.readers.splits import are_splits, refuse_splits

FORM = "one folder per client, and in it one folder of images per class"


def read_folder(path: Path, how: ReadOptions) -> Draft:
    draft = Draft(str(path), FORM, skip=how.skip)
    found = [*_images(path, draft, how.client is not None)]
    if not found and not draft.problems:
        draft.problems.append(
            f"{path} holds nothing to train on; expected {path}/CLIENT/CLASS/image.png, a .csv or .parquet table, "
            "or .npz archives"
        )
    if found:
        clients, splits, labels, files = zip(*found, strict=True)
        x, kept, errors = read_images(files, [str(file) for file in files], image_size(how.size, [files]))
        for error in errors:
            draft.fault(str(error))
        draft.add(x, np.array(labels)[kept], [clients[j] for j in kept], [splits[j] for j in kept])
        draft.remarks.append(f"images are scaled to {x.shape[2]} × {x.shape[3]} pixels")
    return draft.finish()


def _images(path: Path, draft: Draft, alone: bool) -> Iterator[tuple[str, str, str, Path]]:
    """(client, split, class, file) of every image, in a fixed order. `alone`: PATH itself may be the one client."""
    itself = alone and _holds_classes(path)
    top = [path] if itself else _folders(path)
    split_above = are_splits(folder.name for folder in top)
    if not split_above and not itself:
        refuse_splits([folder.name for folder in top], f"the folders in {path}")
    for folder in top:
        clients = _folders(folder) if split_above else [folder]
        for client in clients:
            inside = _folders(client)
            split_below = are_splits(each.name for each in inside)
            if not split_below:
                refuse_splits([each.name for each in inside], f"the folders in {client}", expected="classes")
            for part in inside if split_below else [client]:
                split = folder.name if split_above else part.name if split_below else "train"
                yield from ((client.name, split.lower(), *rest) for rest in _classes(part, client.name, draft))


def _holds_classes(path: Path) -> bool:
    """Do images lie one folder below, or below train and test?"""
    inside = _folders(path)
    if are_splits(folder.name for folder in inside):
        inside = [each for folder in inside for each in _folders(folder)]
    return any(file.suffix.lower() in ENDINGS for folder in inside for file in folder.iterdir() if file.is_file())


def _classes(folder: Path, client: str, draft: Draft) -> Iterator[tuple[str, Path]]:
    classes = _folders(folder)
    if outside := _files(folder, draft):
        draft.problems.append(
            f"client {client!r}: {len(outside)} images, {outside[0]} first, lie outside a class folder and so have no "
            f"label; expected {draft.where}/CLIENT/CLASS/image.png"
        )
    elif not classes:
        draft.problems.append(f"client {client!r}: {folder} holds no class folders with images; fill it or remove it")
    for each in classes:
        files = _files(each, draft)
        if deeper := _folders(each):
            draft.problems.append(f"{deeper[0]} lies inside a class folder; move its images up, or remove it")
        elif not files:
            draft.remarks.append(f"{each} holds no images")
        for file in files:
            yield each.name, file


def _folders(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.is_dir() and each.name[0] != "." and each.name != "__MACOSX")


def _files(path: Path, draft: Draft) -> list[Path]:
    """Image files; what is visible and has another ending is ignored, and that is said."""
    files = sorted(each for each in path.iterdir() if each.is_file() and each.name[0] != ".")
    images = [file for file in files if file.suffix.lower() in ENDINGS]
    if others := [file for file in files if file not in images]:
        draft.remarks.append(f"{len(others)} files in {path} are not images by their ending: {others[0].name}, …")
    return images
