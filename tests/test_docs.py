"""Pages whose code must run, and the pages that every algorithm must have."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedspm.algorithms import ALGORITHMS
from fedspm.comparison import ACCURACIES
from fedspm.experiments import EXPERIMENTS, load_plan
from fedspm.experiments.records import Records

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


RECOUNTED = {"77.72", "77.95", "75.95", "76.67", "80.85", "81.06", "50.65", "80.71"}  # benchmarks/own_statistics.py RUN


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_accuracies_in_a_conclusion_are_those_of_a_cell_or_of_the_paper(name):
    conclusion = DOCS.parent / "results" / name / "CONCLUSION.md"
    if not conclusion.exists():
        return
    plan = load_plan(name)
    known = {figure for panel in plan.panels for row in panel.paper.values() for text in row for figure in text.split()}
    for line in Records(conclusion.with_name("cells.jsonl")).lines.values():
        known |= {f"{100 * line['metrics'][-1][key]:.2f}" for key in ACCURACIES.values() if key in line["metrics"][-1]}
    said = set(re.findall(r"\b\d\d\.\d\d\b", conclusion.read_text()))
    assert not said - known - RECOUNTED
