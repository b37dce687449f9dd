"""Which trials follow: all combinations, random ones, or those that a tree-structured Parzen estimator expects most of.

A search is asked in waves and told what each trial scored. It decides by what it was told alone, so that a tuning that
was stopped asks for the same trials again, and finds them trained.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from fedspm.base.errors import FedSPMError
from fedspm.base.randomness import seed_of
from fedspm.experiments.tuning.space import Range, Space, Trial, all_trials, random_trials

SEARCHES = ("grid", "random", "tpe")
BUDGET = 12  # trials of each method, where nobody says how many


@runtime_checkable
class Search(Protocol):
    def propose(self) -> Sequence[Trial]:
        """The trials of the next wave; none when the budget is spent."""

    def learn(self, trial: Trial, score: float) -> None:
        """What a proposed trial reached; it is as bad as can be if it failed."""


class Listed:
    """Trials that are known from the beginning: a wave of them."""

    def __init__(self, trials: Sequence[Trial]):
        self._waiting = list(trials)

    def propose(self) -> Sequence[Trial]:
        wave, self._waiting = self._waiting, []
        return wave

    def learn(self, trial: Trial, score: float) -> None: ...


class Parzen:
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011), one trial per wave."""

    def __init__(self, space: Space, trials: int, row: str):
        optuna = _optuna()
        sampler = optuna.samplers.TPESampler(seed=seed_of("tune", row) % 2**32)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._distributions = {
            key: optuna.distributions.FloatDistribution(values.low, values.high, log=True)
            if isinstance(values, Range)
            else optuna.distributions.CategoricalDistribution(values)
            for key, values in space.items()
        }
        self._space, self._left = space, trials
        self._asked: Any = None

    def propose(self) -> Sequence[Trial]:
        if self._left == 0:
            return []
        self._left -= 1
        self._asked = self._study.ask(self._distributions)
        return [{key: self._written(key, value) for key, value in self._asked.params.items()}]

    def _written(self, key: str, value: Any) -> Any:
        return float(f"{value:.3g}") if isinstance(self._space[key], Range) else value

    def learn(self, trial: Trial, score: float) -> None:
        self._study.tell(self._asked, score)


def searches(kind: str, spaces: Mapping[str, Space], trials: int | None) -> dict[str, Search]:
    """A search for every method, each with the same number of trials, or with all that there are to try."""
    if kind not in SEARCHES:
        raise FedSPMError(f"there is no search {kind!r}; known are {', '.join(SEARCHES)}")
    if kind == "grid":
        if trials is not None:
            raise FedSPMError("a grid tries every combination; --trials is for random and tpe")
        return {row: Listed(all_trials(space)) for row, space in spaces.items()}
    if kind == "random":
        return {row: Listed(random_trials(space, trials or BUDGET, row)) for row, space in spaces.items()}
    return {row: Parzen(space, trials or BUDGET, row) for row, space in spaces.items()}


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise FedSPMError("--search tpe needs Optuna: pip install 'fedspm[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
