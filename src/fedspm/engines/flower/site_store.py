"""A site's own disk: its private state after every exchange, tagged, atomic, never overwritten by accident.

    STATE/noise.key                           what this site's noise follows from, if a run wants noise
    STATE/RUN/run.json                        what the run is: settings, sites, classes, as this site joined it
    STATE/RUN/private-TURN-EXCHANGE.safetensors
    STATE/RUN/shared.safetensors              what the server sent last, so that it need not be sent twice a round
    STATE/RUN/frozen.safetensors              what no round changes, sent once: a pretrained encoder

What has left the site, in all runs, is in its ledger beside them: `fedspm.engines.flower.ledger`.

Files are readable for their owner alone.

A step of exchange (turn, k) starts from the newest private state before (turn, k). So a site that missed a round goes
on from where it was, and a site that is ahead of a server which went back to its last checkpoint goes back as well.
"""

import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspm.base.errors import DamagedFile, Refused
from fedspm.base.files import private_folder, read_json, write_atomically
from fedspm.base.tensors import Tensors, read_tensors, tensors_digest, write_tensors
from fedspm.engines.flower.ledger import SENT

SECRET = 32  # bytes
TAG = "tag"  # which exchange a file of tensors belongs to, in its metadata
REDONE = 2  # turns that a server may do again: the last one, and that before it in case it dies again meanwhile
Place = tuple[int, int]  # (turn, exchange)


def noise_secret(state: Path) -> str:
    """Drawn once and kept: a reply that is asked for again gets the same noise, also after a restart."""
    path = state / "noise.key"
    if not path.exists():
        write_atomically(private_folder(state) / path.name, secrets.token_hex(SECRET).encode(), private=True)
    secret = path.read_text("utf-8", errors="replace").strip()
    if len(secret) < 2 * SECRET:
        raise Refused("the noise.key of this site is too short to be a secret; delete it, and another is drawn")
    return secret


@dataclass(frozen=True)
class Store:
    """The folder of one run at one site."""

    folder: Path

    @classmethod
    def of(cls, state: Path, run: str) -> "Store":
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", run):  # it becomes a folder, and comes from elsewhere
            raise Refused(f"{run!r} is not the name of a run")
        return cls(state / run)

    # -- the run -----------------------------------------------------------------------------------------------------

    def describe(self, description: dict[str, Any], trained: bool) -> None:
        """Remember what the run is. A run that has `trained` here is not begun anew."""
        if trained or any(turn > 0 for turn, _ in self.places()):
            raise Refused("this site has already trained in this run and does not start again; begin another run")
        self.remember(description)

    def remember(self, description: dict[str, Any]) -> None:
        private_folder(self.folder.parent)
        text = json.dumps(description, ensure_ascii=False)
        write_atomically(private_folder(self.folder) / "run.json", text, private=True)

    def description(self) -> dict[str, Any]:
        if not (self.folder / "run.json").exists():
            raise Refused("this site never joined the run")
        content: dict[str, Any] = read_json(self.folder / "run.json")
        return content

    # -- private state -----------------------------------------------------------------------------------------------

    def places(self) -> list[Place]:
        """Exchanges after which a private state was kept, oldest first."""
        found = (re.fullmatch(r"private-(\d+)-(\d+)\.safetensors", file.name) for file in self.folder.glob("private-*"))
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def before(self, place: Place) -> tuple[Place, Tensors]:
        """The newest private state from before an exchange, and where it comes from."""
        earlier = [each for each in self.places() if each < place]
        if not earlier:
            raise Refused(f"this site has no private state from before exchange {place} of the run")
        tensors, metadata = read_tensors(self._file(earlier[-1]))
        if (tag := metadata.get(TAG, "")) != _text(earlier[-1]):
            raise DamagedFile(f"{self._file(earlier[-1])} is tagged {tag}: it was renamed or copied")
        return earlier[-1], tensors

    def newest(self) -> Tensors:
        return self.before((self.places()[-1][0] + 1, 0))[1] if self.places() else {}

    def keep(self, place: Place, private: Tensors | None) -> None:
        """The private state after an exchange, None if it has not changed; what is undone or old is removed.

        Undone is what follows this exchange: the server has gone back to it. Of what was before this turn, the states
        stay from which turns start that may be done again; a site that has rested has only an old one, and needs it.
        """
        if private is not None:
            write_tensors(self._file(place), private, {TAG: _text(place)})
        places, turn = self.places(), place[0]
        needed = {each for each in places if (turn, 0) <= each < place or (each == place and private is not None)}
        for start in range(turn + 1 - REDONE, turn + 1):
            needed |= set([each for each in places if each < (start, 0)][-1:])
        for each in set(places) - needed:
            self._file(each).unlink(missing_ok=True)

    def _file(self, place: Place) -> Path:
        return self.folder / f"private-{place[0]:06d}-{place[1]:04d}.safetensors"

    # -- what no round changes ---------------------------------------------------------------------------------------

    def keep_frozen(self, tensors: Tensors) -> None:
        write_tensors(self.folder / "frozen.safetensors", tensors, {"tag": tensors_digest(tensors)})

    def frozen(self, digest: str) -> Tensors:
        """The frozen tensors that the server means."""
        path = self.folder / "frozen.safetensors"
        found = read_tensors(path) if path.exists() else None
        if found is None or found.metadata.get("tag") != digest:
            raise Refused("this site does not have the frozen tensors of this run; they are sent again")
        return found.tensors

    # -- shared state ------------------------------------------------------------------------------------------------

    def keep_shared(self, turn: int, shared: Tensors) -> None:
        write_tensors(self.folder / SENT, shared, {TAG: str(turn)})

    def shared(self, turn: int) -> Tensors:
        """What the server has sent in this turn."""
        tensors, last = self.last_shared()
        return tensors if last == turn else {}

    def last_shared(self) -> tuple[Tensors, int]:
        """What the server has sent last, and in which turn; -1 if nothing yet."""
        path = self.folder / SENT
        if not path.exists():
            return {}, -1
        tensors, metadata = read_tensors(path)
        return tensors, int(metadata.get(TAG, -1))


def _text(place: Place) -> str:
    return f"{place[0]}/{place[1]}"
