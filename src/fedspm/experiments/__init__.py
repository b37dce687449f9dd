"""The paper's tables and figures: a TOML file each says what is trained, `fedspm experiment NAME` does it."""

from fedspm.experiments.plan import EXPERIMENTS, Narrowed, Panel, Plan, load_plan

__all__ = ["EXPERIMENTS", "Narrowed", "Panel", "Plan", "load_plan"]
