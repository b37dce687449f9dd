"""The habits of the project: pages that point to what exists, and commands that are the same everywhere."""

import re
import subprocess
from pathlib import Path

import pytest
from test_imports import LEVELS, RULE

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
TEXTS = [
    path
    for folder in ("src", "tests", "docs", "benchmarks", "examples", ".github", "results")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".toml", ".yml", ".sh", ".j2") and path != Path(__file__)
] + [path for path in sorted(ROOT.glob("*")) if path.suffix in (".md", ".toml", ".cff")]


def test_decisions_are_numbered_without_holes():
    assert [page.name[:4] for page in DECISIONS] == [f"{number:04}" for number in range(1, len(DECISIONS) + 1)]
    for page in DECISIONS:
        assert page.read_text("utf-8").startswith(f"# {page.name[:4]} · "), page.name


def test_every_decision_that_is_named_exists():
    known = {page.name[:4] for page in DECISIONS} | {page.stem for page in DECISIONS}
    for path in TEXTS:
        named = re.findall(
            r"(?:docs/decisions/|\.\./decisions/|\bdecision )(\d{4}(?:-[a-z0-9-]+)?)", path.read_text("utf-8")
        )
        assert set(named) <= known, path


@pytest.mark.parametrize("outside", [r"\.\./shared", r"\bthe issue\b", r"\bissue \d", r"\bhidden checks?\b"])
def test_nothing_speaks_of_what_lies_outside_the_repository(outside):
    assert [path for path in TEXTS if re.search(outside, path.read_text("utf-8"))] == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_pages_at_the_root_lead_somewhere(page):
    text = (ROOT / page).read_text("utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (ROOT / target).exists(), target


# -- the page on architecture ------------------------------------------------------------------------------------------


def test_the_architecture_has_the_import_rule_and_every_room():
    assert RULE in " ".join(ARCHITECTURE.split())
    rooms = {room for level in LEVELS for room in level} - {"version"}
    assert set(re.findall(r"^\| `(\w+)` \|", ARCHITECTURE, re.MULTILINE)) == rooms


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_along_the_two_walks_exist(page):
    folder = ""
    for name in re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text("utf-8")):
        if name.startswith("tests/"):
            assert (ROOT / name).exists(), name
            continue
        if "/" in name:  # a name without a folder lies beside the one before it
            folder = str(Path(name).parent)
        assert (ROOT / "src" / "fedspm" / folder / Path(name).name).exists(), name


# -- one way to do things ----------------------------------------------------------------------------------------------


def test_make_help_lists_every_command():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    listed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in listed.splitlines()] == phony.split()


def test_tests_begin_with_the_quick_checks():
    planned = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tools = re.findall(r"\bruff check|\bruff format|\bmypy|\bpytest", planned)
    assert tools == ["ruff check", "ruff format", "mypy", "pytest"]


@pytest.mark.parametrize("workflow", ["test", "check", "wheel", "speed"])
def test_workflows_only_call_make(workflow):
    text = (ROOT / ".github" / "workflows" / f"{workflow}.yml").read_text("utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    commands = re.findall(r"run: ([^#\n]*)", text)
    assert commands
    for command in commands:
        assert re.fullmatch(rf"make ({'|'.join(targets)}) PYTHON=python", command.strip())


def test_hooks_call_what_make_check_calls():
    hooks = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert hooks == [".venv/bin/ruff check --force-exclude", ".venv/bin/ruff format --force-exclude", ".venv/bin/mypy"]


def test_versions_of_python_are_the_same_everywhere():
    declared = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    for workflow in ("test", "check"):
        text = (ROOT / ".github" / "workflows" / f"{workflow}.yml").read_text("utf-8")
        assert re.findall(r'"(3\.\d+)"', text) == declared
