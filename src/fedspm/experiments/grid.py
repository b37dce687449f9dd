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
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

from filelock import FileLock

from fedspm.base.errors import FedSPMError
from fedspm.base.threads import cores
from fedspm.experiments.cell import Cell
from fedspm.experiments.grid_progress import GridWatcher, Progress
from fedspm.report.terminal import counted

LOOK_AGAIN = 1.0  # seconds
Written = TypeVar("Written")


class Unfinished(FedSPMError):
    """Some trainings of a grid failed, or it was interrupted. The same call continues where it stopped.

    `result` is what the call would have returned, made of the trainings that are finished.
    """

    def __init__(self, problem: str, result: Any, interrupted: bool = False):
        super().__init__(problem)
        self.result, self.interrupted = result, interrupted


def run_grid(
    cells: Sequence[Cell],
    order: Sequence[Cell],
    write: Callable[[], Written],
    *,
    jobs: int | None,
    command: str,
    progress: Progress,
) -> Written:
    """Train what is not finished, in this order, and write the tables whenever a training ends; returns what `write`
    returned last, or raises Unfinished with it."""
    if not cells:
        return write()
    jobs = min(jobs or cores(), len(cells))
    folder = cells[0].folder.parent.parent
    if folder.exists() and not folder.is_dir():
        raise FedSPMError(f"--out {folder} is a file; give a folder")
    with progress.busy("looking at what is done"):
        done = sum(cell.finished() for cell in cells)
    progress.say(f"{counted(len(cells), 'training')}, {done} of them done, {jobs} at a time: {cells[0].folder.parent}")
    failures: dict[Cell, str] = {}
    with progress.watch(order, jobs) as watcher:
        grid = Grid(order, jobs, command, watcher)
        with closing(grid.run()) as ended:
            for cell, problem in ended:
                if problem is not None:
                    failures[cell] = problem
                write()
    written = write()
    if grid.stopped:
        raise Unfinished("stopped; go on with the same command", written, interrupted=True)
    if failures:
        raise Unfinished("; ".join(f"{cell.name}: {problem}" for cell, problem in failures.items()), written)
    return written


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

        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may handle signals
            return
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
