"""Pages whose code must run, and the pages that every algorithm must have."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedspm.algorithms import ALGORITHMS
from fedspm.experiments import EXPERIMENTS

DOCS = Path(__file__).parents[1] / "docs"


def test_the_example_of_the_page_on_likelihood_runs():
    for code in re.findall(r"```python\n(.*?)```", (DOCS / "likelihood.md").read_text(), re.DOTALL):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "all samples equal" in done.stdout


def test_the_example_of_the_page_on_own_data_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "own-data.md").read_text(), re.DOTALL)
    exec(compile(code, "own-data.md", "exec"), {})
    assert float(capsys.readouterr().out) > 0.6


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_page(name):
    page = (DOCS / "algorithms" / f"{name.replace('-', '_')}.md").read_text()
    for part in ("## What", "## Our number", "fedspm"):
        assert part in page, part


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_and_the_pages_say_what_the_cells_say(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS.parent / "benchmarks"))
    import pages

    assert pages.table() in (DOCS.parent / "README.md").read_text()
    for name in ALGORITHMS:
        assert pages.section(name).strip() in (DOCS / "algorithms" / f"{name.replace('-', '_')}.md").read_text()
    results = (DOCS / "results.md").read_text()
    assert pages.filled(results) == results
    assert all(f"<!-- {name} -->" in results for name in EXPERIMENTS)
