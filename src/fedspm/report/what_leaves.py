"""docs/what-leaves.md: everything that leaves a client, from the declarations above the client steps (`@step`).

Every word about a tensor is that of its kind (`federated.uploads`), every word about when a step is asked for is the
docstring of the function that decides it, and what a step does is its own docstring. `make pages` writes the page.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedspm.algorithms import ALGORITHMS
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.steps import ATTEMPTS, Step, always, steps_of
from fedspm.federated.uploads import Count, TestRows, Upload
from fedspm.mixture.algorithm import MixtureAlgorithm

DUE = {
    "start": "at the start",
    "round": "every round",
    "evaluation": "at every evaluation",
    "after training": "after the last round",
}
COLUMNS = ("step", "when", "how often", "tensor", "what it is", "over clients", "`privacy.noise`", "where")

HEAD = f"""# What leaves a client

This page is written by `make pages` from the declarations above the client steps (`@step`, `src/fedspm/federated/steps.py`), which are also what
the gate, the noise, the checks across sites and the guard of a site go by. Change those, not the page.

## What is promised

A client sends what its steps declare and nothing else, in one process as across sites. Rows, labels, responsibilities, the offsets of k-means and
whatever else a method keeps in a client's private state are never in a reply: the heads of FedSPM, FedDRM and FedPer, the fine-tuned heads of FedBABU,
the personal models of FedAvgFT and Ditto. Two things that stay can be computed from what leaves: mixing weights, which are τ_ic / n_i (that is how the
server routes without them), and SCAFFOLD's control of a client, the sum of the changes that it sent.

**One gate** (`federated/gate.py`) enforces that on every engine. It refuses

- a step that is not declared;
- a tensor that its step does not declare, or that is declared to be averaged and comes apart, or the other way round;
- an update of something that is not a shared parameter, and a sum or a count under the name of one;
- a row for another client.

Across sites the server checks what it reads once more, and refuses what no rows could have given: negative counts, shares that do not add up to
the rows, sums of squares that are too small. A site answers a step only when the settings of the run use it, in the round that it belongs to, and as often
as "how often" says. It counts on its disk: the same request again gets the same reply; another content is answered beyond that only for rounds
that had to be repeated, over a run as many times as it has rounds, or {ATTEMPTS} if that is more, and never at the start.

**Sums over fewer than `min_count` rows (default 10) are never sent; τ and updates are.** A client or cluster with fewer rows sends zeros. So do further
clusters of `cluster`, the smallest first, until the clusters that are kept back have `min_count` rows together: a client's coarse features sum to zero, so
one missing cluster could be computed by subtraction. Across iterations of k-means the server could still do that where the counts of two replies
differ by a few rows; only `em.start = "random"` prevents it. Training needs τ and updates from a client of any size, and an entry of τ may stand for a few rows.

**What a curious server can still learn.** There is no secure aggregation: the server sees every reply by itself before it averages. Updates of shared parameters carry information about the
rows that made them: the server can guess whether a row was among them, and can rebuild rows from small batches ([deploy.md](deploy.md) has the numbers).
τ tells how large a client's hidden groups are, and the sums tell what its average row looks like. `privacy.clip` and `privacy.noise` bound what updates and τ tell
([decision 0010](decisions/0010-privacy.md)); what is marked "exact" below is not covered, and every evaluation says so.

## What leaves besides steps

| when | what |
|---|---|
| a site joins | its name, its version of FedSPM, the number of its training rows n_i, the shape of a row, its classes, the names of its columns, and whether all its values are between 0 and 1 as in image files |
| with every reply | the tag of its exchange, the site's name, n_i, the weight of the reply, and the tag of the state it started from |
| in place of a reply that a site refuses | a sentence that says why; of an unexpected error only its type, the rest is in the site's log |
| `fedspm export`, where the rows of all clients are at hand | in the router's folder, to tell what is novel: centres of components and their scatter, from counts, sums and products of what the router sees (h and a 7 × 7 average), without components of fewer than `min_count` rows; and the distances of held-out rows as 1,001 quantiles. Nothing of it crosses machines: of a run across sites there is no such calibration |

## How to read the tables

A name stands for all tensors that begin with it: `predictor` for `predictor.0.weight` and the others. "Averaged" tensors are merged into sums or means over clients before the method sees
them, "kept apart" ones by client. Under `privacy.noise`, "noised" means that noise is added at the client: to an update after it was clipped, to shares before they are
scaled back to n_i (with one component they are n_i and carry none). "Exact" is sent as it is, and "not sent" says that a run with noise does not ask for the step. "In process only" steps are never answered by a site: a request
can be made up that has a single row in its sum.
"""


def what_leaves_page() -> str:
    """The page: what all methods promise, the steps that they share, and one table per method."""
    common = steps_of(Algorithm)
    mixtures = _without(steps_of(MixtureAlgorithm), common)
    shared = common | mixtures
    names = [_title(method) for method in ALGORITHMS.values() if issubclass(method, MixtureAlgorithm)]
    text = [HEAD, *_section("Every method", Algorithm, common)]
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
        yield [*first, f"`{name}`", _meaning(upload), merged, _noise(step, upload), where]
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
    if isinstance(upload, TestRows) and upload.by_client:
        return f"{upload.phrase} that are routed to each client"
    if isinstance(upload, TestRows) and upload.of:
        return f"{upload.phrase}, of those in `{upload.of}`"
    return upload.phrase


def _noise(step: Step, upload: Upload) -> str:
    if upload.noised:
        return "noised"
    return "not sent" if step.when == "after training" else "exact"


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
