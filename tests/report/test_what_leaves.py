"""docs/what-leaves.md is what the declarations say, of every step of every method."""

import re
from pathlib import Path

import pytest

from fedspm.algorithms import ALGORITHMS
from fedspm.federated.steps import always
from fedspm.federated.task import Task
from fedspm.mixture.first_responsibilities import most_iterations
from fedspm.report import what_leaves
from fedspm.report.what_leaves import what_leaves_page
from small import small_settings

PAGE = Path(__file__).parents[2] / "docs" / "what-leaves.md"


def sections() -> dict[str, str]:
    """The parts of the page by their headings."""
    return {part.partition("\n")[0]: part for part in PAGE.read_text().split("\n## ")[1:]}


def test_the_page_is_what_the_declarations_say():
    assert PAGE.read_text() == what_leaves_page(), "run `make pages`"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_step_of_every_method_is_on_the_page_with_all_that_it_sends(name):
    method, found = ALGORITHMS[name], sections()
    mixture = "and of methods with components" in found[what_leaves._title(method)]
    text = found["Every method"] + found["Methods with components"] * mixture + found[what_leaves._title(method)]
    for step in method.steps.values():
        assert f"| `{step.name}` |" in text
        assert f"- `{step.name}`: " in text
        for tensor, upload in step.uploads.items():
            assert re.search(rf"\| `{tensor}` \| {upload.phrase.split()[0]}", text), (step.name, tensor)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_everything_that_a_page_is_written_from_has_words(name):
    for step in ALGORITHMS[name].steps.values():
        assert what_leaves._does(ALGORITHMS[name], step), f"{step.name} has no docstring"
        assert all(upload.phrase for upload in step.uploads.values())
        for rule in (step.used, step.times):
            assert rule is always or not callable(rule) or rule.__doc__, f"{step.name}: {rule} has no docstring"


def test_a_step_that_a_site_never_answers_says_so():
    line = next(line for line in sections()["FedSPM"].splitlines() if line.startswith("| `baseline_gradient`"))
    assert line.endswith("| in process only |")


@pytest.mark.parametrize("components", [2, 3, 7])
def test_how_often_clusters_are_asked_for_is_as_the_page_has_it(components):
    task = Task((6,), 2, ("north", "south"), (90, 90))
    method = ALGORITHMS["fedem"](small_settings(algorithm="fedem", components=components), task)
    once, again = map(int, re.search(r"(\d+) \+ (\d+) \(C − 1\)", most_iterations.__doc__).groups())
    assert f"at most {once} + {again} (C − 1) times" in sections()["Methods with components"]
    assert most_iterations(method) == once + again * (components - 1)
