"""The paper's data sets in small, in every form they come in."""

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fedspm.data.catalog.cifar import COARSE_OF

ROWS = {"train": 50, "test": 10}


def cifar_rows(fine: bool, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images and labels (fine ones for CIFAR-100) of both splits."""
    random = np.random.default_rng(seed)
    return {
        split: (random.integers(0, 256, (n, 32, 32, 3), np.uint8), np.arange(n) * 7 % (100 if fine else 10))
        for split, n in ROWS.items()
    }


def by_planes(images: np.ndarray) -> np.ndarray:
    """3,072 bytes a row, red before green before blue."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)


def write_official(folder: Path, fine: bool, protocol: int = 2) -> Path:
    rows = cifar_rows(fine)
    inner = folder / ("cifar-100-python" if fine else "cifar-10-batches-py")
    inner.mkdir(parents=True)
    if fine:
        for split, (images, labels) in rows.items():
            coarse = COARSE_OF[labels].tolist()
            batch = {b"data": by_planes(images), b"fine_labels": labels.tolist(), b"coarse_labels": coarse}
            (inner / split).write_bytes(pickle.dumps(batch, protocol))
        (inner / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple"]}, protocol))
    else:
        images, labels = rows["train"]
        batches = {
            f"data_batch_{i + 1}": part
            for i, part in enumerate(zip(np.split(images, 5), np.split(labels, 5), strict=True))
        }
        for name, (x, y) in {**batches, "test_batch": rows["test"]}.items():
            batch = {b"data": by_planes(x), b"labels": y.tolist(), b"filenames": [b"a.png"] * len(y)}
            (inner / name).write_bytes(pickle.dumps(batch, protocol))
    return folder


def python2_pickle(data: np.ndarray, **lists: list[int]) -> bytes:
    """The opcodes that Python 2 wrote into the official archives: its strings are neither bytes nor text to us."""

    def string(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text

    shape = b"".join(b"J" + struct.pack("<i", extent) for extent in data.shape) + b"\x86"
    new = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
    kind = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xff"
    state = b"(K\x01" + shape + kind + b"J\xff\xff\xff\xffK\x00tb\x89" + string(data.tobytes()) + b"tb"
    items = string(b"data") + new + state
    for name, values in lists.items():
        items += string(name.encode()) + b"](" + b"".join(b"K" + bytes([value]) for value in values) + b"e"
    return b"\x80\x02}(" + items + b"u."


def write_python2(folder: Path, fine: bool) -> Path:
    write_official(folder, fine)
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "meta":
            batch = pickle.loads(path.read_bytes())
            data = batch.pop(b"data")
            batch.pop(b"filenames", None)
            path.write_bytes(python2_pickle(data, **{key.decode(): values for key, values in batch.items()}))
    return folder


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return buffer.getvalue()


def write_parquet(folder: Path, fine: bool, style: str) -> Path:
    """plain: train.parquet with img as bytes; hub: data/train-00000-of-00002.parquet with image as a struct."""
    for split, (images, labels) in cifar_rows(fine).items():
        cells = [encoded(image, "WEBP" if style == "plain" else "PNG") for image in images]
        known = {"fine_label": labels, "coarse_label": COARSE_OF[labels]} if fine else {"label": labels}
        if style == "hub":
            table = pa.table({"image": [{"bytes": cell, "path": "a.png"} for cell in cells], **known})
            half = len(labels) // 2
            for i, part in enumerate((table.slice(0, half), table.slice(half))):
                path = folder / "data" / f"{split}-{i:05d}-of-00002.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(part, path)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(
                pa.table({"img": cells, **known, "filename": ["a"] * len(labels)}), folder / f"{split}.parquet"
            )
    return folder


def write_sheets(folder: Path) -> Path:
    inner = folder / "package"
    inner.mkdir(parents=True)
    rows = cifar_rows(fine=False)
    for i, part in enumerate(np.split(rows["train"][0], 5)):
        Image.fromarray(part.reshape(len(part), 1024, 3)).save(inner / f"data_batch_{i + 1}.png")
    test = rows["test"][0]
    Image.fromarray(test.reshape(len(test), 1024, 3)).save(inner / "test_batch.png")
    for split, (_, labels) in rows.items():
        (inner / f"{split}_lables.json").write_text(json.dumps(labels.tolist()))
    return folder


def write_isic(folder: Path, centers=range(6), each: int = 6, images: str = "ISIC_2019_Training_Input_preprocessed"):
    """Rectangles whose middle square has one colour a center and whose sides are white."""
    (folder / images).mkdir(parents=True)
    lines = ["image,target,center,fold,fold2"]
    for center in centers:
        for i in range(each):
            fold = "test" if i % 3 == 2 else "train"
            name = f"ISIC_{1000 * center + i:07d}"
            lines.append(f"{name},{i % 8},{center},{fold},{fold}_{center}")
            picture = np.full((150, 200, 3), 255, np.uint8)
            picture[:, 25:175] = 40 * center
            Image.fromarray(picture).save(folder / images / f"{name}.jpg", quality=95)
    (folder / "train_test_split.csv").write_text("\n".join(lines) + "\n")
    return folder


def packed(folder: Path, ending: str) -> Path:
    """The folder as an archive beside it, in an order of its own."""
    target = folder.with_name(folder.name + "-packed" + ending)
    files = sorted((file for file in folder.rglob("*") if file.is_file()), reverse=True)
    if ending == ".zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, file.relative_to(folder))
    else:
        with tarfile.open(target, "w:gz" if ending.endswith("gz") else "w") as archive:
            for file in files:
                archive.add(file, f"top/{file.relative_to(folder)}")
    return target


def write_fashion(folder, zipped=True):
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", 30), ("t10k", 20)):
        images = np.random.default_rng(n).integers(0, 256, (n, 28, 28), np.uint8)
        for stem, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", np.arange(n) % 10)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            content = header + array.astype(np.uint8).tobytes()
            (folder / (stem + (".gz" if zipped else ""))).write_bytes(gzip.compress(content) if zipped else content)
    return folder
