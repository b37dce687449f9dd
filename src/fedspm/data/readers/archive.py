"""A folder, a tar or a zip, read the same way: the names of its files, and what is in them."""

import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import cast

from fedspm.base.errors import DamagedFile

ENDINGS = (".tar", ".tar.gz", ".tgz", ".zip")
DEPTH = 4  # folders below a data set's own: a path that was mistyped as / must not be walked to its end


class Archive:
    """The files of a data set, wherever they lie. Names are relative, with slashes, in the order they are stored."""

    def __init__(self, path: Path):
        self.path = path
        with damage(path):
            self._archive = _opened(path)
            self.names = _names(path, self._archive)

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        if self._archive is not None:
            self._archive.close()

    @contextmanager
    def open(self, name: str) -> Iterator[BufferedIOBase]:
        """One of the files; whatever goes wrong while it is read is said with its name."""
        with damage(self.where(name)):
            if self._archive is None:
                with (self.path / name).open("rb") as file:
                    yield file
            elif isinstance(self._archive, tarfile.TarFile):
                member = self._archive.extractfile(name)
                assert member is not None
                with member:
                    yield cast(BufferedIOBase, member)
            else:
                with self._archive.open(name) as entry:
                    yield cast(BufferedIOBase, entry)

    def where(self, name: str) -> str:
        return str(self.path / name) if self._archive is None else f"{name} in {self.path}"

    def called(self, *names: str) -> dict[str, str]:
        """Files by their last name; of two with the same, the one that lies less deep."""
        found: dict[str, str] = {}
        for name in sorted(self.names, key=lambda name: name.count("/")):
            last = PurePosixPath(name).name
            if last in names:
                found.setdefault(last, name)
        return found


def archives_at(path: Path) -> Iterator[Archive]:
    """What may hold a data set at this place: the folder or archive itself, then the archives in the folder."""
    archives = [each for each in sorted(path.iterdir()) if each.name.endswith(ENDINGS)] if path.is_dir() else []
    for each in (path, *archives):
        with Archive(each) as archive:
            yield archive


def contents(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of every file at a place: changes whenever a file does."""
    files = [path / name for name in _names(path, None)] if path.is_dir() else [path]
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]


@contextmanager
def damage(where: str | Path) -> Iterator[None]:
    """What an archive or the system says about a file, as a sentence with its name."""
    try:
        yield
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedFile(
            f"{where} cannot be read, it is damaged or cut off: {error or type(error).__name__}"
        ) from error


def _opened(path: Path) -> tarfile.TarFile | zipfile.ZipFile | None:
    if path.is_dir():
        return None
    if not path.name.endswith(ENDINGS):
        raise DamagedFile(f"{path} is neither a folder nor one of {', '.join(ENDINGS)}; give the folder it lies in")
    return zipfile.ZipFile(path) if path.name.endswith(".zip") else tarfile.open(path)


def _names(path: Path, archive: tarfile.TarFile | zipfile.ZipFile | None) -> list[str]:
    if isinstance(archive, tarfile.TarFile):
        return [member.name for member in archive.getmembers() if member.isfile()]
    if archive is not None:
        return [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    names = []
    for folder, inner, files in os.walk(path):
        below = Path(folder).relative_to(path)
        names += [(below / file).as_posix() for file in files]
        inner[:] = sorted(inner) if len(below.parts) < DEPTH else []
    return sorted(names)
