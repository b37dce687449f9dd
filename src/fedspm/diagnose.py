"""`fedspm diagnose`: what the lines of diagnosed runs say, as a table and as the paper's three panels."""

from collections.abc import Sequence
from pathlib import Path

from fedspm.errors import FedSPMError
from fedspm.files import write_atomically
from fedspm.likelihood.diagnostics import Bridge, bridge_errors
from fedspm.likelihood.profile import accumulation_factors
from fedspm.pictures import convergence, rendered
from fedspm.runs import Run

BRIDGE = ("run", "momentum", "gauge", "‖∇F‖²", "Γ₂", "ε", "δ", "a_E", "s_E", "unsolved")


def bridges(runs: Sequence[Run]) -> list[tuple[Run, str, Bridge | None]]:
    """The bridge errors of every run in the fixed and in the raw gauge; None where no round has a solution."""
    found: list[tuple[Run, str, Bridge | None]] = []
    for run in runs:
        lines = run.diagnostics()
        if not lines:
            raise FedSPMError(f"{run.path} was not diagnosed; train with --diagnose-every 1")
        found.append((run, "fixed", bridge_errors(lines)))
        solved = [line for line in lines if line["raw"] is not None and line["raw"]["f_after"] is not None]
        found.append((run, "raw", bridge_errors(lines, "raw") if solved else None))
    return found


def bridge_rows(found: Sequence[tuple[Run, str, Bridge | None]]) -> list[list[str]]:
    rows = []
    for run, gauge, bridge in found:
        block = run.config.router
        a, s = accumulation_factors(block.momentum, block.steps)
        name = [run.path.name, f"{block.momentum:g}", gauge]
        if bridge is None:
            rows.append([*name, "–", "–", "–", "–", f"{a:.1f}", f"{s:.1f}", "all"])
            continue
        figures = [bridge.gradient[-1], bridge.gamma2, bridge.epsilon[-1], bridge.delta[-1]]
        rows.append([*name, *(f"{value:.3g}" for value in figures), f"{a:.1f}", f"{s:.1f}", str(bridge.unsolved)])
    return rows


def write_picture(found: Sequence[tuple[Run, str, Bridge | None]], path: Path) -> Path:
    kind = path.suffix.removeprefix(".")
    if kind not in ("svg", "png"):
        raise FedSPMError(f"{path}: the picture must be an svg or a png")
    panels = {
        f"μ = {run.config.router.momentum:g}" if len(found) > 2 else run.path.name: bridge
        for run, gauge, bridge in found
        if gauge == "fixed" and bridge is not None
    }
    write_atomically(path, rendered(convergence(panels), kind))
    return path
