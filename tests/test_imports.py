"""Imports point one way, from later rooms to earlier ones, and never in a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fedspm"
RULE = (
    "version < base < data, nn < federated < mixture < algorithms, likelihood < engines < runs < training < report"
    " < experiments, serve, deploy, testing, audit < bench, estimator < cli"
)
LEVELS = [level.split(", ") for level in RULE.split(" < ")]
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
    if path.relative_to(SOURCE).parts[0] not in ("__init__.py", "__main__.py")
}


def imported(module: str) -> set[str]:
    """The modules of this package that one imports, inside functions too; imports for type checkers aside."""
    tree, found = ast.parse(MODULES[module].read_text()), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if (
            isinstance(node, ast.ImportFrom) and not node.level
        ):  # relative: bench/sides, which runs in other environments
            names = [name for alias in node.names for name in (f"{node.module}.{alias.name}", str(node.module))]
        found |= {name.removeprefix("fedspm.") for name in names} & MODULES.keys()
    return found - {module}


def room(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module):
    wrong = {
        other for other in imported(module) if room(other) != room(module) and LEVEL[room(other)] >= LEVEL[room(module)]
    }
    assert not wrong, f"{module} imports {sorted(wrong)}: {RULE}"


def test_there_is_no_circle():
    def without_packages(names: set[str]) -> set[str]:  # a package's own __init__ may list what is in it
        return {name for name in names if MODULES[name].name != "__init__.py"}

    TopologicalSorter({name: without_packages(imported(name)) for name in MODULES}).prepare()


def test_nothing_is_ever_unpickled():
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in ("torch.load", "torch.save", "np.load", "pickle.load", "pickle.loads"), file
