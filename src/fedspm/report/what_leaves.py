"""docs/what-leaves.md: everything that leaves a client, from the declarations above the client steps (`@step`).

The head of the page is what_leaves.md.j2. Below it, what is said of a tensor is the phrase of its kind
(`federated.uploads`), when a step is asked for is the docstring of the function that decides it, and what a step does
is its own docstring. `make pages` writes the page.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from fedspm.algorithms import ALGORITHMS
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.steps import ATTEMPTS, Step, always, steps_of
from fedspm.federated.uploads import Count, EvaluationCount, Upload
from fedspm.mixture.algorithm import MixtureAlgorithm

DUE = {
    "start": "at the start",
    "round": "every round",
    "evaluation": "at every evaluation",
    "after training": "after the last round",
}
COLUMNS = ("step", "when", "how often", "tensor", "what it is", "over clients", "`privacy.noise`", "where")


def what_leaves_page() -> str:
    """The page: what all methods promise, the steps that they share, and one table per method."""
    common = steps_of(Algorithm)
    mixtures = _without(steps_of(MixtureAlgorithm), common)
    shared = common | mixtures
    names = [_title(method) for method in ALGORITHMS.values() if issubclass(method, MixtureAlgorithm)]
    head = jinja2.Template(Path(__file__).with_name("what_leaves.md.j2").read_text("utf-8")).render(attempts=ATTEMPTS)
    text = [head, "", *_section("Every method", Algorithm, common)]
    text += _section("Methods with components", MixtureAlgorithm, mixtures, f"{', '.join(names[:-1])} and {names[-1]}.")
    for name, method in ALGORITHMS.items():
        page = f"[Its page](algorithms/{name.replace('-', '_')}.md). Beside its own steps: those of every method"
        beside = f"{page}, and of methods with components." if issubclass(method, MixtureAlgorithm) else f"{page}."
        text += _section(_title(method), method, _without(method.steps, shared), beside)
    return "\n".join(text)


def _section(title: str, method: type, steps: Mapping[str, Step], about: str = "") -> list[str]:
    """A heading, one row per tensor of every step, and what each step does."""
    rows = [row for step in steps.values() for row in _rows(step)]
    lines = [f"| {' | '.join(row)} |" for row in (COLUMNS, ["---"] * len(COLUMNS), *rows)]
    does = [f"- `{name}`: {_does(method, step)}" for name, step in steps.items()]
    return [f"## {title}", "", *([about, ""] if about else []), *lines, "", *does, ""]


def _rows(step: Step) -> Iterable[list[str]]:
    """One row per tensor; what is said of the step stands in the first."""
    due = DUE[step.when] + ("" if step.used is always else f", {_sentence(step.used)}")
    where = "in process only" if step.in_process_only else "everywhere"
    first = [f"`{step.name}`", due, _how_often(step)]
    for name, upload in step.uploads.items():
        merged = "kept apart" if upload.apart else "averaged"
        yield [*first, f"`{name}`", _meaning(upload), merged, _noise(upload), where]
        first = ["", "", ""]
    if not step.uploads:
        yield [*first, "–", "nothing leaves", "–", "–", where]


def _how_often(step: Step) -> str:
    if step.in_process_only:
        return "as often as needed"
    if callable(step.times):
        return _sentence(step.times)
    return "once" if step.times == 1 else f"{step.times} times"


def _meaning(upload: Upload) -> str:
    """What a tensor is: the phrase of its kind, and what of that kind is meant."""
    if isinstance(upload, Count) and upload.of != "rows":
        return f"number of {upload.of} in all rows"
    if isinstance(upload, EvaluationCount) and upload.by_client:
        return f"{upload.phrase} that are routed to each client"
    if isinstance(upload, EvaluationCount) and upload.of:
        return f"{upload.phrase}, of those in `{upload.of}`"
    return upload.phrase


def _noise(upload: Upload) -> str:
    return "noised" if upload.noised else "not sent"


def _does(method: type, step: Step) -> str:
    """The docstring of a step, and what else is declared of it."""
    told = " ".join((inspect.getdoc(getattr(method, step.name)) or "").split())
    if step.rows == "test":
        told += " It sees test rows only."
    if step.partial:
        told += " A reply may hold some of these tensors and not the others."
    return told


def _sentence(rule: Callable[[Any], object]) -> str:
    """The docstring of a function that decides about a step, to go on with in the middle of a sentence."""
    told = inspect.getdoc(rule) or ""
    return told[:1].lower() + told[1:].rstrip(".")


def _title(method: type) -> str:
    """What a method is called: the first word of its module."""
    return (sys.modules[method.__module__].__doc__ or "").partition(":")[0]


def _without(steps: Mapping[str, Step], others: Mapping[str, Step]) -> dict[str, Step]:
    return {name: step for name, step in steps.items() if others.get(name) != step}
