"""How a grid tells that it goes on: nothing, or in the terminal a bar for every training and the time that is left."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fedspm.experiments.cell import Cell
from fedspm.report.terminal import GridProgress, console, grid_progress
from fedspm.runs.folder import Run


@runtime_checkable
class GridWatcher(Protocol):
    """Is told what happens to the trainings of a grid, from several threads."""

    def began(self, cell: Cell) -> None: ...

    def heard(self, cell: Cell, line: dict[str, Any]) -> None: ...

    def ended(self, cell: Cell, problem: str | None) -> None: ...

    def waiting(self, cells: Sequence[Cell]) -> None: ...

    def stopping(self) -> None: ...


@runtime_checkable
class Progress(Protocol):
    """What a call that trains a grid tells its caller meanwhile."""

    def say(self, text: str) -> None:
        """One line."""

    def busy(self, text: str) -> AbstractContextManager[object]:
        """Something that takes a moment, while the context lasts."""

    def watch(self, cells: Sequence[Cell], jobs: int) -> AbstractContextManager[GridWatcher]:
        """A watcher for trainings of which `jobs` run at a time."""


class SilentWatcher:
    """Looks away."""

    def began(self, cell: Cell) -> None: ...

    def heard(self, cell: Cell, line: dict[str, Any]) -> None: ...

    def ended(self, cell: Cell, problem: str | None) -> None: ...

    def waiting(self, cells: Sequence[Cell]) -> None: ...

    def stopping(self) -> None: ...


class SilentProgress:
    """Tells nothing: the default of every call from Python."""

    def say(self, text: str) -> None: ...

    def busy(self, text: str) -> AbstractContextManager[object]:
        return nullcontext()

    def watch(self, cells: Sequence[Cell], jobs: int) -> AbstractContextManager[GridWatcher]:
        return nullcontext(SilentWatcher())


SILENT = SilentProgress()


@dataclass(frozen=True)
class TerminalProgress:
    """Lines and bars in the terminal, as `fedspm compare` and `fedspm experiment` show them."""

    say: Callable[[str], None] = print

    def busy(self, text: str) -> AbstractContextManager[object]:
        return console.status(text)

    @contextmanager
    def watch(self, cells: Sequence[Cell], jobs: int) -> Iterator[GridWatcher]:
        left = TimeLeft(cells, jobs)
        done, total = sum(cell.rounds_done() for cell in cells), sum(cell.config.rounds for cell in cells)
        with grid_progress(done, total, lambda: left.seconds) as progress:
            yield BarWatcher(progress, left)


@dataclass
class BarWatcher:
    """Moves the bars."""

    progress: GridProgress
    left: "TimeLeft"

    def began(self, cell: Cell) -> None:
        self.progress.began(cell.name, cell.config.rounds, cell.config.rounds - self.left.rounds(cell))
        self.progress.moved(cell.name, cell.rounds_done())  # another grid may have gone on with it

    def heard(self, cell: Cell, line: dict[str, Any]) -> None:
        self.left.heard(cell, line["round"])
        self.progress.moved(cell.name, line["round"])

    def ended(self, cell: Cell, problem: str | None) -> None:
        self.left.ended(cell)
        if problem is not None:
            self.progress.ended(cell.name, f"{cell.name} failed: {problem}")
        elif cell.finished():
            last = Run.open(cell.folder).last_metrics()
            accuracies = f"system {last['system_accuracy']:.3f}   average {last['average_accuracy']:.3f}"
            self.progress.ended(cell.name, f"{cell.name:18} {accuracies}   {last['seconds']:.0f} s of training")
        else:
            self.progress.ended(cell.name, f"{cell.name} stopped")

    def waiting(self, cells: Sequence[Cell]) -> None:
        self.progress.say(f"waiting for another process, which trains {', '.join(cell.name for cell in cells)}")

    def stopping(self) -> None:
        self.progress.say("stopping after these rounds; press Ctrl-C again to stop at once")


class TimeLeft:
    """Seconds until a grid is done, from what a round of each method has taken so far."""

    def __init__(self, cells: Sequence[Cell], jobs: int):
        self._left = {cell: cell.config.rounds - cell.rounds_done() for cell in cells}
        self._jobs = jobs
        self._last: dict[Cell, tuple[int, float]] = {}
        self._pace: dict[str, float] = {}  # seconds per round, by method

    def rounds(self, cell: Cell) -> int:
        return self._left[cell]

    def heard(self, cell: Cell, round: int) -> None:
        now = time.monotonic()
        if cell in self._last and round > self._last[cell][0]:
            before, then = self._last[cell]
            seconds = (now - then) / (round - before)
            self._pace[cell.row] = 0.9 * self._pace.get(cell.row, seconds) + 0.1 * seconds
        self._last[cell] = (round, now)
        self._left[cell] = cell.config.rounds - round

    def ended(self, cell: Cell) -> None:
        self._left[cell] = 0

    @property
    def seconds(self) -> float | None:
        if not self._pace:
            return None
        usual = statistics.mean(self._pace.values())
        each = [rounds * self._pace.get(cell.row, usual) for cell, rounds in self._left.items()]
        return max(sum(each) / self._jobs, *each)
