"""What an experiment trains: panels of rows (methods, or settings with a name) over seeds, read from its TOML file."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from fedspm.base.errors import FedSPMError
from fedspm.base.layers import assignments, merged
from fedspm.base.schema import Strict
from fedspm.experiments.cell import Cell
from fedspm.experiments.comparison import paper_rows, row_settings
from fedspm.runs.config import load_config, resolve

RESULTS = Path("results")  # where results lie unless another folder is given
FOLDER = Path(__file__).parent / "specs"
EXPERIMENTS = ("table1", "table2", "momentum", "components", "isic", "ablation")  # in the order of the paper, ours last
Key = tuple[str, str, int]  # panel, row, seed


class Panel(Strict):
    """One setting in which all rows are compared: a data set, a preset, a strength of heterogeneity."""

    name: str
    title: str
    settings: dict[str, Any] = Field({}, description="over those of the plan")
    rows: list[str] | None = Field(None, description="which of the plan's, if not all")
    paper: dict[str, tuple[str, str]] = Field(
        {}, description="the paper's system and average accuracy in per cent, by row, as it prints them"
    )
    notes: dict[str, str] = Field({}, description="what a reader of a row must know beside its number")


class Plan(Strict):
    name: str
    title: str
    source: str = Field("", description="where the paper has it; nothing if it has not")
    picture: Literal["curves", "values", "convergence"]
    axis: str = Field("", description="what the rows of a `values` picture vary")
    seeds: list[int]
    rows: list[str] | dict[str, dict[str, Any]] = Field(description="methods by their names, or names with settings")
    settings: dict[str, Any] = Field({}, description="of every training")
    panels: list[Panel]

    @model_validator(mode="after")
    def _panels_have_known_rows(self) -> "Plan":
        for panel in self.panels:
            if unknown := [row for row in panel.rows or () if row not in self.rows]:
                raise ValueError(f"the panel {panel.name} has a row {unknown[0]!r}, which the plan has not")
        return self

    @property
    def whence(self) -> str:
        return f"In the paper: {self.source}." if self.source else "Ours; the paper does not have it."

    def keys(self) -> list[Key]:
        """Every training of the plan, panel by panel, seed by seed."""
        return [(panel.name, row, seed) for panel in self.panels for seed in self.seeds for row in self.rows_of(panel)]

    def rows_of(self, panel: Panel) -> list[str]:
        return [row for row in self.rows if panel.rows is None or row in panel.rows]

    def row_names(self) -> list[str]:
        return list(self.rows)

    def settings_of(self, panel: Panel, row: str) -> dict[str, Any]:
        return merged(self.settings, panel.settings, self.row_settings(row))

    def row_settings(self, row: str) -> Mapping[str, Any]:
        return self.rows[row] if isinstance(self.rows, Mapping) else row_settings(row)

    def panel(self, name: str) -> Panel:
        return next(panel for panel in self.panels if panel.name == name)


@dataclass(frozen=True)
class Selection:
    """Which part of an experiment to train, and with which other settings; None means all of it."""

    seeds: Sequence[int] | None = None
    rows: Sequence[str] | None = None
    panels: Sequence[str] | None = None
    rounds: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def command(self, plan: "Plan", out: Path) -> str:
        """What is typed to train the rest of a plan in the same way."""
        rounds = [] if self.rounds is None else ["--rounds", str(self.rounds)]
        folder = [] if out == RESULTS else ["--out", str(out)]
        settings = [part for each in assignments(self.settings) for part in ("--set", each)]
        return shlex.join(["fedspm", "experiment", plan.name, *rounds, *folder, *settings])

    def within(self, plan: "Plan") -> "Selection | None":
        """What a plan has of it; None if it has no such rows or panels."""
        rows = None if self.rows is None else [row for row in self.rows if row in plan.rows]
        names = [panel.name for panel in plan.panels]
        panels = None if self.panels is None else [panel for panel in self.panels if panel in names]
        return None if rows == [] or panels == [] else replace(self, rows=rows, panels=panels)


def load_plan(name: str) -> Plan:
    if name not in EXPERIMENTS:
        raise FedSPMError(f"there is no experiment {name!r}; there are shifts, {', '.join(EXPERIMENTS)}, and all")
    found = load_config(FOLDER / f"{name}.toml")
    if found["rows"] == "all":
        found["rows"] = paper_rows()
    return Plan.model_validate({"name": name, **found})


def plan_cells(plan: Plan, wanted: Selection, folder: Path) -> list[Cell]:
    """The trainings that are wanted, panel by panel, seed by seed."""
    if "seed" in wanted.settings:
        raise FedSPMError("--set seed: use --seeds instead")
    seeds = plan.seeds if wanted.seeds is None else wanted.seeds
    rows = _chosen("--methods", wanted.rows, plan.row_names())
    names = _chosen("--panels", wanted.panels, [panel.name for panel in plan.panels])
    cells = []
    for panel in plan.panels:
        if panel.name not in names:
            continue
        for seed in seeds:
            for row in (row for row in plan.rows_of(panel) if row in rows):
                config = resolve(plan.settings_of(panel, row), wanted.settings, {"seed": seed})
                if config != resolve(
                    plan.settings_of(panel, row), wanted.settings, plan.row_settings(row), {"seed": seed}
                ):
                    raise FedSPMError(f"--set changes what the row {row} is about; leave it out")
                if wanted.rounds is not None and wanted.rounds != config.rounds:
                    # the first rounds of the same schedule, not a shorter schedule
                    if wanted.rounds > config.schedule:
                        raise FedSPMError(
                            f"--rounds {wanted.rounds}: the schedule has {config.schedule}, and --rounds takes the "
                            f"first of them; a longer one is --set rounds={wanted.rounds}"
                        )
                    config = config.model_copy(update={"rounds": wanted.rounds, "horizon": config.schedule})
                cells.append(
                    Cell(row, config, folder / panel.name / "runs" / f"{row.replace(' ', '-')}-seed{seed}", panel.name)
                )
    if not cells:
        raise FedSPMError(f"{', '.join(names)} has no {', '.join(rows)}")
    return cells


def _chosen(option: str, wanted: Sequence[Any] | None, known: Sequence[Any]) -> list[Any]:
    if wanted is None:
        return list(known)
    for each in wanted:
        if each not in known:
            raise FedSPMError(f"{option} {each}: this experiment has {', '.join(map(str, known))}")
    return [each for each in known if each in wanted]
