"""Imports point one way: cli → engines → algorithms → mixture → core; data and encoders know none of them."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fedspm"
LEAVES = {"errors", "nested", "plugins", "ports", "randomness", "strict", "version"}
MAY_IMPORT = {
    "errors": set(),
    "nested": {"errors"},
    "ports": set(),
    "strict": {"errors"},
    "randomness": set(),
    "version": set(),
    "plugins": {"errors"},
    "data": LEAVES | {"data", "files"},
    "encoders": LEAVES | {"encoders"},
    "core": LEAVES | {"core", "encoders"},
    "likelihood": {"core", "encoders", "errors", "likelihood", "mixture"},
    "mixture": LEAVES | {"core", "encoders", "mixture"},
    "algorithms": LEAVES | {"core", "encoders", "mixture", "algorithms"},
    "engines": LEAVES | {"algorithms", "core", "data", "engines", "evaluation", "files"},
    "files": LEAVES,
    "terminal": LEAVES,
    "pictures": set(),
    "data_pictures": {"data", "pictures"},
    "plot": LEAVES | {"config", "data", "data_pictures", "files", "pictures"},
    "config": LEAVES | {"core", "data"},
    "reference": {"algorithms", "config", "nested", "strict"},
    "evaluation": LEAVES | {"core", "data"},
    "checkpoints": LEAVES | {"core", "files"},
    "runs": LEAVES | {"core", "data", "algorithms", "checkpoints", "config", "evaluation", "files", "manifest"},
    "manifest": {"core", "data", "version"},
    "privacy": {"core", "errors"},
    "training": {
        "checkpoints",
        "core",
        "data",
        "engines",
        "config",
        "errors",
        "evaluation",
        "likelihood",
        "mixture",
        "privacy",
        "runs",
    },
    "onboarding": LEAVES
    | {"algorithms", "checkpoints", "config", "core", "data", "engines", "evaluation", "files", "manifest", "mixture"}
    | {"runs"},
    "deploy": LEAVES
    | {"algorithms", "config", "core", "data", "deploy", "engines", "files", "manifest", "runs", "training"},
    "diagnose": LEAVES | {"core", "files", "likelihood", "pictures", "runs"},
    "queries": LEAVES | {"core", "data", "evaluation", "runs"},
    "alike": {"algorithms", "config", "core", "strict"},
    "cell": LEAVES | {"alike", "config", "files", "report", "runs", "training"},
    "grid": LEAVES | {"cell", "config", "core", "files", "runs"},
    "grid_shown": {"grid", "runs", "terminal"},
    "comparison": LEAVES | {"algorithms", "config", "grid", "runs"},
    "tables": LEAVES | {"comparison", "data", "files", "grid", "pictures", "runs"},
    "choosing": LEAVES | {"algorithms", "comparison", "config", "files", "grid", "pictures", "runs", "tables"},
    "bench": LEAVES
    | {
        "algorithms",
        "bench",
        "config",
        "core",
        "data",
        "encoders",
        "engines",
        "evaluation",
        "runs",
        "terminal",
        "training",
    },
    "experiments": LEAVES
    | {"alike", "comparison", "config", "core", "experiments", "files", "grid", "likelihood", "pictures", "runs"}
    | {"tables"},
    "serve": LEAVES | {"algorithms", "config", "core", "data", "evaluation", "files", "mixture", "runs", "serve"},
    "report": {"data", "data_pictures", "evaluation", "files", "pictures", "privacy", "queries", "runs"},
}


def imported(path: Path) -> set[str]:
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        parts |= {name.split(".")[1] for name in names if name.startswith("fedspm.")}
    return parts


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_point_one_way(part):
    files = sorted((SOURCE / part).rglob("*.py")) if (SOURCE / part).is_dir() else [SOURCE / f"{part}.py"]
    assert files
    for file in files:
        wrong = imported(file) - MAY_IMPORT[part]
        assert not wrong, f"{file.relative_to(SOURCE)} imports {sorted(wrong)}"


def test_nothing_is_ever_unpickled():
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("torch.load", "torch.save", "np.load", "pickle.load", "pickle.loads"), file
