"""`fedspm diagnose`: what the lines of diagnosed runs say, as a table and as the paper's three panels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedspm.base.errors import FedSPMError
from fedspm.base.files import write_atomically
from fedspm.federated.settings import Block
from fedspm.likelihood.diagnostics import Bridge, bridge_errors, normalised_lines, shown_bridge, solved_lines
from fedspm.likelihood.profile import accumulation_factors
from fedspm.mixture.semiparametric import require_semiparametric
from fedspm.report.figures import convergence, rendered
from fedspm.runs.folder import Run

HEADLINE = ("run", "μ", "rounds", "‖∇F‖²", "F", "of γ", "of ξ", "of ν", "max λ", "least eff. rows", "defect of γ")
BRIDGE = ("run", "μ", "gauge", "‖∇F‖²", "Γ₂", "ε", "δ", "unsolved")


def headline_rows(runs: Sequence[Run]) -> list[list[str]]:
    """At normalised γ, over the rounds that all runs were diagnosed in: means of ‖∇F‖² and of its parts, F before the
    last of them, the largest λ, the fewest rows that G spreads over, how far from eq. 4 γ as trained were at most."""
    found = {run.path: normalised_lines(run.diagnostics()) for run in runs}
    common = sorted(set.intersection(*map(set, found.values()))) if found else []
    rows = []
    for run in runs if common else ():
        lines = [found[run.path][number] for number in common]
        blocks = [np.mean([line["blocks"][block] for line in lines]) for block in ("gamma", "xi", "nu")]
        shown = [np.mean([line["gradient"] for line in lines]), lines[-1]["F"], *blocks]
        shown += [max(line["max_multiplier"] for line in lines), min(line["effective_rows"] for line in lines)]
        shown += [max(line["defect"] for line in lines)]
        name = [run.path.name, f"{drm_steps(run).momentum:g}", str(len(common))]
        rows.append([*name, *(f"{value:.4g}" for value in shown)])
    return rows


def bridges(runs: Sequence[Run]) -> list[tuple[Run, str, Bridge | None]]:
    """The bridge errors of every run in the fixed and in the raw gauge; None where no round has a solution."""
    found: list[tuple[Run, str, Bridge | None]] = []
    for run in runs:
        lines = run.diagnostics()
        if not lines:
            stand_ins = {role: nn.Flatten() for role in ("predictor", "router")}  # the networks do not matter here
            require_semiparametric(run.algorithm(stand_ins))
            raise FedSPMError(f"{run.path} was not diagnosed; train with --diagnose-every 1")
        for gauge in ("fixed", "raw"):
            found.append((run, gauge, bridge_errors(lines, gauge) if solved_lines(lines, gauge) else None))
    return found


def bridge_rows(found: Sequence[tuple[Run, str, Bridge | None]]) -> list[list[str]]:
    rows = []
    for run, gauge, bridge in found:
        name = [run.path.name, f"{drm_steps(run).momentum:g}", gauge]
        rows.append([*name, *shown_bridge(bridge), "all" if bridge is None else str(bridge.unsolved)])
    return rows


def bridge_records(found: Sequence[tuple[Run, str, Bridge | None]]) -> list[dict[str, Any]]:
    """The same for machines: whole numbers and whole curves, under the names of `Bridge`."""
    return [
        {
            "run": str(run.path),
            "momentum": drm_steps(run).momentum,
            "gauge": gauge,
            **({"normalised": normalised_lines(run.diagnostics())} if gauge == "fixed" else {}),
            **({name: np.asarray(value).tolist() for name, value in vars(bridge).items()} if bridge else {}),
        }
        for run, gauge, bridge in found
    ]


def drm_steps(run: Run) -> Block:
    """How the density ratios of a run were descended: FedDRM's joint loss takes the predictor's steps."""
    return run.config.predictor if run.config.options.get("joint") else run.config.router


def accumulation(run: Run) -> str:
    """The factors of the theorem, for the DRM block of a run."""
    block = drm_steps(run)
    a, s = accumulation_factors(block.momentum, block.steps)
    return f"{run.path.name}: μ = {block.momentum:g}, E = {block.steps} local steps, a_E = {a:.2f}, s_E = {s:.2f}"


def write_picture(found: Sequence[tuple[Run, str, Bridge | None]], path: Path) -> Path:
    kind = path.suffix.removeprefix(".")
    if kind not in ("svg", "png"):
        raise FedSPMError(f"{path}: the picture must be an svg or a png")
    runs = {run.path: run for run, _, _ in found}
    momenta = {drm_steps(run).momentum for run in runs.values()}
    by_momentum = 1 < len(momenta) == len(runs)
    names = {key: f"μ = {drm_steps(run).momentum:g}" if by_momentum else str(key) for key, run in runs.items()}
    fixed = {names[run.path]: bridge for run, gauge, bridge in found if gauge == "fixed" and bridge is not None}
    headline = {names[key]: _running_mean(run) for key, run in runs.items() if normalised_lines(run.diagnostics())}
    if not fixed and not headline:
        raise FedSPMError("no diagnosed round has a solution of eq. 6: there is nothing to draw")
    write_atomically(path, rendered(convergence(fixed, headline), kind))
    return path


def _running_mean(run: Run) -> tuple[list[int], list[float]]:
    """T⁻¹ Σ ‖∇F‖² at normalised γ, over the rounds that were diagnosed"""
    lines = normalised_lines(run.diagnostics())
    squares = np.array([line["gradient"] for line in lines.values()])
    return list(lines), (np.cumsum(squares) / np.arange(1, len(squares) + 1)).tolist()
