"""What the README tells people to type works. Rounds are cut to two; the commands are otherwise as printed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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


@pytest.mark.parametrize("code", blocks("python"))
def test_the_python(tmp_path, code):
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.7


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
    assert (target / "fedspm" / "data" / "sample" / "LICENSE").exists()
    assert (target / "fedspm" / "py.typed").exists()  # PEP 561: type checkers use the package's types
    code = "import fedspm.data.fashion as f; print(f.__file__, f.load_sample()[0].shape, f.NAMES[0])"
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
    assert (target / "fedspm" / "report.html.j2").exists()
