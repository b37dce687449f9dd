"""The paper's tables and figures, and comparisons of one's own: a grid of trainings each, started by one call.

The names load on first use: every training is a process that imports `fedspm.experiments.worker` and needs no tables.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedspm.experiments.comparison import Comparison, compare
    from fedspm.experiments.grid import Unfinished
    from fedspm.experiments.grid_progress import Progress, TerminalProgress
    from fedspm.experiments.plan import EXPERIMENTS, Panel, Plan, Selection, load_plan
    from fedspm.experiments.runner import (
        ExperimentResult,
        ExperimentStatus,
        list_experiments,
        run_experiment,
        run_experiments,
    )
    from fedspm.experiments.select_components import Choice, choose_components
    from fedspm.experiments.tuning.tune import Tuning, tune

__all__ = [
    "EXPERIMENTS",
    "Choice",
    "Comparison",
    "ExperimentResult",
    "ExperimentStatus",
    "Panel",
    "Plan",
    "Progress",
    "Selection",
    "TerminalProgress",
    "Tuning",
    "Unfinished",
    "choose_components",
    "compare",
    "list_experiments",
    "load_plan",
    "run_experiment",
    "run_experiments",
    "tune",
]

_HOME = {
    "comparison": ("Comparison", "compare"),
    "grid": ("Unfinished",),
    "grid_progress": ("Progress", "TerminalProgress"),
    "plan": ("EXPERIMENTS", "Panel", "Plan", "Selection", "load_plan"),
    "runner": ("ExperimentResult", "ExperimentStatus", "list_experiments", "run_experiment", "run_experiments"),
    "select_components": ("Choice", "choose_components"),
    "tuning.tune": ("Tuning", "tune"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"fedspm.experiments.{module}"), name)
    raise AttributeError(f"module 'fedspm.experiments' has no attribute {name!r}")
