"""What is known of an experiment: cells.jsonl, one line per finished training; kept when run folders are gone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import BaseModel, Field, ValidationError

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.base.files import write_atomically
from fedspm.base.schema import problem
from fedspm.experiments.comparison import record, record_lines
from fedspm.experiments.grid import Cell
from fedspm.experiments.plan import Key, Plan
from fedspm.runs.compatibility import differences, prolongs
from fedspm.runs.config import Config, recorded
from fedspm.runs.folder import Run


class Metrics(BaseModel, strict=True):
    round: int
    system_accuracy: float
    average_accuracy: float
    seconds: float


class Line(BaseModel, strict=True):
    """What has to be in a line for tables to be made of it; the rest is kept as it is."""

    panel: str
    method: str
    seed: int
    settings: dict[str, Any]
    title: str
    data_fingerprint: str
    created: str
    fedspm: str
    versions: dict[str, str]
    machine: dict[str, Any]
    metrics: list[Metrics] = Field(min_length=1)
    diagnostics: list[dict[str, Any]]

    @property
    def key(self) -> Key:
        return self.panel, self.method, self.seed


class Records:
    """The lines of cells.jsonl by panel, row and seed."""

    def __init__(self, path: Path):
        self.path = path
        self.lines = self._read()
        self.lock = FileLock(path.parent / ".lock")  # of the whole folder: tables are made of these lines

    def _read(self) -> dict[Key, dict[str, Any]]:
        if not self.path.exists():
            return {}
        found: dict[Key, dict[str, Any]] = {}
        try:
            for text in self.path.read_text(encoding="utf-8").splitlines():
                line = json.loads(text)
                key = Line.model_validate(line).key
                recorded(line["settings"])
                if key in found:
                    raise FedSPMError(f"it has {' '.join(map(str, key))} twice")
                found[key] = line
        except (OSError, ValueError, FedSPMError) as error:  # bad UTF-8, JSON and fields are ValueErrors
            reason = problem(error, Line) if isinstance(error, ValidationError) else str(error)
            raise DamagedFile(
                f"{self.path} is damaged after {len(found)} lines ({reason}); take it from git again, or delete it"
            ) from error
        return found

    def __contains__(self, cell: Cell) -> bool:
        """Is this training done? Its first rounds are not all of it; the same name with other settings is refused."""
        line = self.lines.get(_key(cell))
        if line is None or _prolongs(cell.config, line):
            return False
        if different := differences(recorded(line["settings"]), cell.config):
            raise FedSPMError(
                f"{self.path} has {cell.name} with other settings ({'; '.join(different)}); ask for those, give "
                "another --out, or delete its line to train it anew"
            )
        return True

    def refuse_other_data(self, cells: Sequence[Cell]) -> None:
        """Rows of a panel with the same seed are compared, so all have to see the same data."""
        known = {(panel, seed): (row, recorded(line["settings"])) for (panel, row, seed), line in self.lines.items()}
        for cell in cells:
            row, config = known.get((cell.panel, cell.config.seed), (cell.row, cell.config))
            if config.rows != cell.config.rows:
                raise FedSPMError(
                    f"{self.path} has {cell.panel} {row} seed {cell.config.seed} on other data than {cell.row} would "
                    f"see ({'; '.join(differences(config, cell.config))}); give another --out"
                )

    def borrow(self, cells: Sequence[Cell], others: "Sequence[Records]") -> None:
        """Trainings that another experiment has done with the same settings: table 2's centre is a panel of table 1."""
        known = {
            (line["seed"], _settings(recorded(line["settings"]))): line
            for other in others
            for line in other.lines.values()
        }
        for cell in cells:
            line = known.get((cell.config.seed, _settings(cell.config)))
            ours = self.lines.get(_key(cell))
            if line and (ours is None or _prolongs(cell.config, ours)):
                self.lines[_key(cell)] = {**line, "panel": cell.panel, "method": cell.row}

    def take(self, cells: Sequence[Cell], plan: Plan) -> None:
        """Add what has been finished meanwhile, here or by another process, and write it in the order of the plan."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.lock:
            written = self._read()
            self.lines = written | {
                key: line
                for key, line in self.lines.items()
                if key not in written or _prolongs(recorded(line["settings"]), written[key])
            }
            for cell in [cell for cell in cells if cell not in self and cell.finished()]:
                run = Run.open(cell.folder)
                self.lines[_key(cell)] = {"panel": cell.panel, **record(cell), "diagnostics": run.diagnostics()}
            if self.lines != written:
                write_atomically(self.path, record_lines(self.ordered(plan)))

    def ordered(self, plan: Plan) -> list[dict[str, Any]]:
        panels, rows = [panel.name for panel in plan.panels], plan.row_names()
        for panel, row, seed in self.lines:
            if panel not in panels or row not in rows:
                raise DamagedFile(f"{self.path} has {panel} {row} seed {seed}, which {plan.name} does not know")
        return sorted(
            self.lines.values(),
            key=lambda line: (panels.index(line["panel"]), rows.index(line["method"]), line["seed"]),
        )

    def of_panel(self, panel: str, plan: Plan) -> list[dict[str, Any]]:
        return [line for line in self.ordered(plan) if line["panel"] == panel]


def _settings(config: Config) -> str:
    """Comparable, however the length of the schedule was said."""
    return json.dumps(config.said() | {"horizon": config.schedule}, sort_keys=True)


def _prolongs(config: Config, line: dict[str, Any]) -> bool:
    return prolongs(config, recorded(line["settings"]))


def _key(cell: Cell) -> Key:
    return cell.panel, cell.row, cell.config.seed
