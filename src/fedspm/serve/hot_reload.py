"""A folder of a bundle that may be replaced while it is served."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, TypeVar

from fedspm.base.errors import FedSPMError
from fedspm.base.files import is_partial
from fedspm.serve.bundle import KINDS, SUFFIXES, ServedModel

LOOK_EVERY = 0.5  # seconds
NAMED = 3  # files that a line of the log lists
Model = TypeVar("Model", bound=ServedModel)
Stamp = tuple[tuple[int, int], ...]
log = logging.getLogger("fedspm.serve")


async def always_ready(model: ServedModel) -> bool:
    return True


class ReloadableModel(Generic[Model]):
    """The model of the newest bundle, and the one before it: queries that began with the old model end with it."""

    def __init__(self, folder: Path, load: Callable[[Path], Model]):
        self._folder = folder
        self._load = load
        self._strays: list[str] = []
        self._stamp = self._stamped()
        self.model = self._answering(load(folder))
        self._before: Model | None = None
        self._coming: Model | None = None
        self._trouble = ""
        self._name_strays()

    def of_version(self, version: str) -> Model | None:
        return next((each for each in (self.model, self._before) if each and each.card.version == version), None)

    def versions(self) -> list[str]:
        return [each.card.version for each in (self.model, self._before) if each]

    async def watch(self, ready: Callable[[Model], Awaitable[bool]] = always_ready) -> None:
        """Swap in a bundle that appears in the folder, once `ready` says so. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self.refresh(ready)

    async def refresh(self, ready: Callable[[Model], Awaitable[bool]] = always_ready) -> None:
        """Load a bundle that has appeared in the folder since the last look, and swap it in if it is `ready`."""
        self._name_strays()
        if (stamp := self._stamped()) not in (None, self._stamp):
            self._coming = None
            try:
                coming = await asyncio.to_thread(self._load, self._folder)
                self._stamp = stamp  # it is whole: if it does not answer, it will not at the next look
                self._coming = await asyncio.to_thread(self._answering, coming)
                self._trouble = ""
            except Exception as error:  # half copied, perhaps: the old one serves on, and we look again
                said = str(error) if isinstance(error, FedSPMError | OSError) else repr(error)
                if said != self._trouble:  # a large file takes many looks to arrive
                    log.warning("the new bundle is not used: %s", said)
                self._trouble = said
        if self._coming is None or not await ready(self._coming):
            return
        if self._coming.card != self.model.card:
            self._before, self.model = self.model, self._coming
            log.warning("now serving version %s", self.model.card.version)
        self._coming = None

    def _answering(self, model: Model) -> Model:
        """The model, if it answers a probe. It is built here, so that the first query need not wait for that."""
        try:
            model.require_answers()
        except FedSPMError as error:
            raise FedSPMError(f"{self._folder}: {error}") from error
        return model

    def _name_strays(self) -> None:
        """Say once which files in the folder are not of a bundle; they change nothing."""
        ours = {f"{self.model.kind}.{suffix}" for suffix in SUFFIXES}
        try:
            found = sorted(name for name in os.listdir(self._folder) if name not in ours and not is_partial(name))
        except OSError:
            return
        if found and found != self._strays:
            named = ", ".join(map(repr, found[:NAMED])) + (f" and {len(found) - NAMED} more" if found[NAMED:] else "")
            log.warning("%s holds %s, which no export wrote; it is not used", self._folder, named)
        self._strays = found

    def _stamped(self) -> Stamp | None:
        """Of the cards in the folder; None while there is none. One of the other kind may lie beside the model's."""
        found = []
        for kind in KINDS:
            with contextlib.suppress(OSError):
                status = os.stat(self._folder / f"{kind}.json")
                found.append((status.st_mtime_ns, status.st_ino))
        return tuple(found) or None
