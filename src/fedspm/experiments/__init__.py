"""The paper's tables and figures, and comparisons of one's own: a grid of trainings each, started by one call."""

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
    "Unfinished",
    "choose_components",
    "compare",
    "list_experiments",
    "load_plan",
    "run_experiment",
    "run_experiments",
]
