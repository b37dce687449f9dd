"""What the README tells people to type works. Rounds are cut to two; the commands are otherwise as printed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_two_commands_come_first_and_exist():
    commands = re.findall(r"^    (make \w+)", README, re.MULTILINE)
    assert commands[:2] == ["make run", "make test"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"run", "test", "check"} <= set(targets)
    assert (ROOT / ".ci" / "run").read_text().strip().splitlines()[-1] == "make test"


def test_the_commands(tmp_path):
    for line in "".join(blocks("sh")).splitlines():
        program, *arguments = shlex.split(re.sub(r"--rounds \d+", "--rounds 2", line))
        assert program == "fedspm"
        done = subprocess.run(
            [sys.executable, "-m", "fedspm", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_the_python_prints_what_stands_below_it_and_every_site_gains(tmp_path):
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    number = r"\d\.\d\d\d"
    printed, shown = done.stdout, blocks("text")[1]
    assert re.sub(number, "", printed) == re.sub(number, "", shown)
    figures = [[float(each) for each in re.findall(number, text)] for text in (printed, shown)]
    assert figures[0] == pytest.approx(figures[1], abs=0.03)  # another processor rounds differently
    for line in printed.splitlines():
        alone, together, routed = map(float, re.findall(number, line))
        assert together > alone, line
        assert routed > alone, line


def test_a_stranger_meets_things_in_order():
    """What it is, the two commands, Python with its output, when to use it and when not; then the rest."""
    headings = re.findall(r"^## (.*)", README, re.MULTILINE)
    assert headings[:3] == ["Two commands", "From Python", "When to use it, and when not"]
    assert "How far FedSPM" not in README  # tables of differences are in docs/results.md


def test_every_file_it_links_to_exists():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_wheel_installs_and_runs(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("fedspm-*.whl")
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    assert (target / "fedspm" / "data" / "catalog" / "sample" / "LICENSE").exists()
    assert (target / "fedspm" / "py.typed").exists()  # PEP 561: type checkers use the package's types
    source = ROOT / "src"
    files = {path.relative_to(source) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert {path for path in files if path.parts[0] == "fedspm" and not (target / path).exists()} == set()
    code = "import fedspm.data.catalog.fashion as f; print(f.__file__, f.load_sample()[0].shape, f.NAMES[0])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(target) in done.stdout
    assert "(10000, 28, 28)" in done.stdout
    assert (target / "fedspm" / "report" / "report.html.j2").exists()
