"""What is known of an experiment: cells.jsonl, a line a finished training; it stays when the run folders are gone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedspm.comparison import record, record_lines
from fedspm.config import differences, recorded
from fedspm.errors import DamagedFile, FedSPMError
from fedspm.experiments.plan import Key, Plan
from fedspm.files import write_atomically
from fedspm.grid import Cell
from fedspm.runs import Run


class Records:
    """The lines of cells.jsonl by panel, row and seed."""

    def __init__(self, path: Path):
        self.path = path
        self.lines = self._read()

    def _read(self) -> dict[Key, dict[str, Any]]:
        if not self.path.exists():
            return {}
        try:
            found = [json.loads(line) for line in self.path.read_text().splitlines() if line]
            return {(line["panel"], line["method"], line["seed"]): line for line in found}
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise DamagedFile(f"{self.path} is damaged ({error}); take it from git again, or delete it") from error

    def __contains__(self, cell: Cell) -> bool:
        """Is this training done? One of the same name with other settings is refused."""
        line = self.lines.get(_key(cell))
        if line is None:
            return False
        if different := differences(recorded(line["settings"]), cell.config):
            raise FedSPMError(
                f"{self.path} has {cell.name} with other settings ({'; '.join(different)}); give another --out"
            )
        return True

    def borrow(self, cells: Sequence[Cell], others: "Sequence[Records]") -> None:
        """Trainings that another experiment has done with the same settings: table 2's centre is a panel of table 1."""
        known = {(line["seed"], _settings(line)): line for other in others for line in other.lines.values()}
        for cell in cells:
            line = known.get((cell.config.seed, json.dumps(cell.config.said(), sort_keys=True)))
            if line and _key(cell) not in self.lines:
                self.lines[_key(cell)] = {**line, "panel": cell.panel, "method": cell.row}

    def take(self, cells: Sequence[Cell], plan: Plan) -> None:
        """Add what has been finished meanwhile, here or by another process, and write it in the order of the plan."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.parent / ".lock"):
            written = self._read()
            self.lines |= written
            for cell in [cell for cell in cells if cell not in self and cell.finished()]:
                run = Run.open(cell.folder)
                self.lines[_key(cell)] = {"panel": cell.panel, **record(cell), "diagnostics": run.diagnostics()}
            if self.lines.keys() != written.keys():
                write_atomically(self.path, record_lines(self.ordered(plan)))

    def ordered(self, plan: Plan) -> list[dict[str, Any]]:
        panels, rows = [panel.name for panel in plan.panels], plan.row_names()
        return sorted(
            self.lines.values(),
            key=lambda line: (panels.index(line["panel"]), rows.index(line["method"]), line["seed"]),
        )

    def of_panel(self, panel: str, plan: Plan) -> list[dict[str, Any]]:
        return [line for line in self.ordered(plan) if line["panel"] == panel]


def _settings(line: dict[str, Any]) -> str:
    """Comparable whatever was added to the settings since: what a line does not say has its default."""
    return json.dumps(recorded(line["settings"]).said(), sort_keys=True)


def _key(cell: Cell) -> Key:
    return cell.panel, cell.row, cell.config.seed
