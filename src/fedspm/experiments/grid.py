"""Many trainings side by side: every cell of a grid is a run folder, trained in a process of its own.

A cell that is done is not trained again, one that was stopped goes on, one that fails does not disturb the others.
Several grids on one folder, perhaps of several machines, share its cells.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, runtime_checkable

from filelock import FileLock, Timeout

from fedspm.base.errors import FedSPMError
from fedspm.base.files import explained
from fedspm.base.threads import cores
from fedspm.experiments.worker import refuse_other_settings
from fedspm.runs.config import Config
from fedspm.runs.folder import Run

LOOK_AGAIN = 1.0  # seconds


@dataclass(frozen=True, eq=False)
class Cell:
    """One training: a method with a seed."""

    row: str
    config: Config
    folder: Path
    panel: str = ""

    @property
    def name(self) -> str:
        return f"{self.panel} {self.row} seed {self.config.seed}".strip()

    def rounds_done(self) -> int:
        """Evaluated rounds of the run so far; a folder that belongs to other settings is refused."""
        if not (self.folder / "manifest.json").exists():
            return 0
        run = Run.open(self.folder)
        refuse_other_settings(run, self.config)
        metrics = run.metrics()
        return int(metrics[-1]["round"]) if metrics else 0

    def finished(self) -> bool:
        """All rounds are evaluated, in a checkpoint, and in the report, which comes last."""
        if self.rounds_done() < self.config.rounds or not (self.folder / "report.html").exists():
            return False
        return Run.open(self.folder).last_round() == self.config.rounds

    def claim(self) -> FileLock | None:
        """Held by the grid that trains this cell; None if another one does. The system frees it when that one dies."""
        path = self.folder.with_name(f".{self.folder.name}.claim")
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                return None
        return lock


@runtime_checkable
class GridWatcher(Protocol):
    """Somebody who looks on."""

    def began(self, cell: Cell) -> None: ...

    def heard(self, cell: Cell, line: dict[str, Any]) -> None: ...

    def ended(self, cell: Cell, problem: str | None) -> None: ...

    def waiting(self, cells: Sequence[Cell]) -> None: ...

    def stopping(self) -> None: ...


@dataclass
class Grid:
    """Cells in the order in which they are begun, `jobs` of them at a time."""

    cells: Sequence[Cell]
    jobs: int
    command: str
    watcher: GridWatcher
    stopped: bool = False
    _processes: dict[Cell, subprocess.Popen[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _patient: bool = False

    def run(self) -> Generator[tuple[Cell, str | None], None, None]:
        """Trains what is not finished; yields each cell as it ends, with the sentence of what went wrong or None.

        Cells that Ctrl-C interrupted are not yielded: each has a checkpoint, and the next run goes on from it.
        """
        waiting = [cell for cell in self.cells if not cell.finished()]
        with self._stop_on_interrupt(), ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(self._train_one, waiting) for _ in range(len(waiting))]
            try:
                for future in as_completed(futures):
                    if ended := future.result():
                        yield ended
            except BaseException:  # whoever takes the results cannot: the pool would go on to the last cell unheard
                self._interrupt()
                raise

    def _train_one(self, waiting: list[Cell]) -> tuple[Cell, str | None] | None:
        """The first that no other grid trains, or else the first to be free; None if it is interrupted."""
        while not self.stopped:
            if not (claimed := self._claim(waiting)):
                time.sleep(LOOK_AGAIN)
                continue
            cell, claim = claimed
            if isinstance(claim, FedSPMError):
                return cell, str(claim)
            try:
                problem = self._train(cell)
                return (cell, problem) if problem is not None or cell.finished() else None
            except FedSPMError as error:
                return cell, str(error)
            finally:
                claim.release()
        return None

    def _claim(self, waiting: list[Cell]) -> tuple[Cell, FileLock | FedSPMError] | None:
        with self._lock:
            for cell in waiting:
                try:
                    claim: FileLock | FedSPMError | None = cell.claim()
                except FedSPMError as error:
                    claim = error
                if claim is not None:
                    waiting.remove(cell)
                    return cell, claim
            if not self._patient:
                self._patient = True
                self.watcher.waiting(waiting)
        return None

    def _train(self, cell: Cell) -> str | None:
        """In a process of its own; returns what went wrong."""
        if cell.finished():  # by another grid, meanwhile
            self.watcher.began(cell)
            self.watcher.ended(cell, None)
            return None
        with self._lock:
            if self.stopped:
                return None
            process = self._processes[cell] = self._start()
        errors: list[str] = []
        failure: Exception | None = None
        with process:
            reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True)
            reader.start()
            if self.stopped:  # between the two lines above
                process.send_signal(signal.SIGINT)
            try:
                self._listen(cell, process)
            except (OSError, ValueError, FedSPMError) as error:  # it died in the middle of a line, or before the first
                process.kill()
                failure = error
            reader.join(LOOK_AGAIN if failure else None)  # a worker of its own may live a little longer
        del self._processes[cell]
        bad = (process.returncode or failure) and not self.stopped
        problem = _complaint(process.returncode, failure, errors) if bad else None
        self.watcher.ended(cell, problem)
        return problem

    def _listen(self, cell: Cell, process: "subprocess.Popen[str]") -> None:
        """Hand over the order, and pass on what is heard until the process falls silent."""
        self.watcher.began(cell)
        assert process.stdin is not None
        assert process.stdout is not None
        config = cell.config.model_copy(update={"workers": max(1, cores() // self.jobs)}).to_dict()
        json.dump({"folder": str(cell.folder), "config": config, "command": self.command}, process.stdin)
        process.stdin.close()
        for line in process.stdout:
            self.watcher.heard(cell, json.loads(line))

    def _start(self) -> subprocess.Popen[str]:
        """In a session of its own, so that Ctrl-C reaches this process only, which passes it on once."""
        return subprocess.Popen(
            [sys.executable, "-m", "fedspm.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _interrupt(self) -> None:
        """Every process ends its round and leaves a checkpoint; nothing is begun any more."""
        self.stopped = True
        for process in list(self._processes.values()):
            process.send_signal(signal.SIGINT)

    @contextmanager
    def _stop_on_interrupt(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            if self.stopped:
                for process in list(self._processes.values()):
                    process.kill()
                raise KeyboardInterrupt
            if self._processes:
                self.watcher.stopping()
            self._interrupt()

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _complaint(code: int, failure: Exception | None, errors: Sequence[str]) -> str:
    """Why a process ended badly: what we refused, or its own last words, or what became of it."""
    said = [line.strip() for line in errors if line.strip()]
    if isinstance(failure, FedSPMError):
        return str(failure)
    if code < 0 and failure is None:
        return f"its process was killed by signal {-code}" + (f"; it had said: {said[-1]}" if said else "")
    return said[-1] if said else str(failure or f"its process ended with exit code {code}")
