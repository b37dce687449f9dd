"""`fedspm diagnose`: what the lines of diagnosed runs say, as a table and as the paper's three panels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedspm.base.errors import FedSPMError
from fedspm.base.files import write_atomically
from fedspm.federated.settings import Block
from fedspm.likelihood.diagnostics import Bridge, bridge_errors, shown_bridge, solved_lines
from fedspm.likelihood.profile import accumulation_factors
from fedspm.mixture.semiparametric import require_semiparametric
from fedspm.report.figures import convergence, rendered
from fedspm.runs.folder import Run

BRIDGE = ("run", "μ", "gauge", "‖∇F‖²", "Γ₂", "ε", "δ", "unsolved")


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
    fixed = [(run, bridge) for run, gauge, bridge in found if gauge == "fixed" and bridge is not None]
    if not fixed:
        raise FedSPMError("no diagnosed round has a solution of eq. 6: there is nothing to draw")
    momenta = {drm_steps(run).momentum for run, _ in fixed}
    by_momentum = 1 < len(momenta) == len(fixed)
    panels = {f"μ = {drm_steps(run).momentum:g}" if by_momentum else str(run.path): bridge for run, bridge in fixed}
    write_atomically(path, rendered(convergence(panels), kind))
    return path
