"""One training of a grid: a row of a table with a seed, its configuration, and the run folder that it fills."""

from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedspm.base.files import explained
from fedspm.experiments.worker import refuse_other_settings
from fedspm.runs.config import Config
from fedspm.runs.folder import Run


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
