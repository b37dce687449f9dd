"""`Training`: a training under way, as callbacks see it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from fedspm.base.errors import TooFewSites
from fedspm.base.tensors import Tensors
from fedspm.data.federation import Federation
from fedspm.federated.accountant import spent
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.evaluation import Model, evaluate
from fedspm.federated.sizes import learnt_parameters
from fedspm.mixture.sketch import Sketch
from fedspm.runs.checkpoints import Checkpoint
from fedspm.runs.config import Config
from fedspm.runs.folder import Run
from fedspm.training.callbacks import (
    BaselineSketch,
    Callback,
    Checkpoints,
    Evaluation,
    LikelihoodDiagnosis,
    RunLog,
    require_callbacks,
)
from fedspm.training.clock import Clock
from fedspm.training.engine import Engine
from fedspm.training.evaluation import counted, has_test_rows, model_of, prepare


class Training:
    """A training under way, as callbacks see it.

    Between two rounds `round` is the number of rounds done, `shared` the shared state after them, `metrics` what the
    evaluation of the last one found (None if it was not evaluated) and `history` all metrics so far. `engine` holds the
    clients; `clock` counts the seconds of training.
    """

    engine: Engine
    shared: Tensors
    clock: Clock

    def __init__(
        self,
        config: Config,
        algorithm: Algorithm,
        federation: Federation | None,
        *,
        validation: Federation | None = None,
        run: Run | None = None,
        checkpoint: Checkpoint | None = None,
        callbacks: Sequence[Callback] = (),
    ):
        self.config, self.algorithm = config, algorithm
        self.federation = federation  # None: the rows are at the sites
        self.validation = validation  # its test rows are for validation, in metrics["validation"]
        self.run = run
        self.resumed = checkpoint
        self.round = checkpoint.round if checkpoint else 0
        self.metrics: dict[str, Any] | None = None
        self.history: list[dict[str, Any]] = []
        self.sketch: Sketch | None = None  # of the baseline, once training has ended
        self.refused: Counter[str] = Counter()  # by client, rounds in which a reply of it was refused
        self.why_refused: dict[str, str] = {}  # the last time
        self.stopping = False
        self.why_stopped: str | None = None
        self.to_restore: Checkpoint | None = None  # the state to end with, if it is not the last one
        self._prepared_after: int | None = None
        self.callbacks = self._in_order(callbacks)

    def _in_order(self, callbacks: Sequence[Callback]) -> list[Callback]:
        """The given callbacks, between those that observe a round and those that evaluate and save what it made."""
        config, first = self.config, list[Callback]()
        last: list[Callback] = [Evaluation(config.eval_every), BaselineSketch()]
        if self.run is not None:
            if config.diagnose_every and self.federation is not None:
                first.append(LikelihoodDiagnosis(self.run, config.diagnose_every))
            first.append(RunLog(self.run))
            last.append(Checkpoints(self.run, config.keep_checkpoints))
        return [*first, *require_callbacks(callbacks), *last]

    @property
    def finished(self) -> bool:
        """Are all rounds done?"""
        return self.round == self.config.rounds

    @property
    def ending(self) -> bool:
        """Does no other round follow, because all are done or somebody has stopped it?"""
        return self.stopping or self.finished

    def stop(self, why: str | None = None) -> None:
        """End after this round, with a checkpoint if there is a run folder; `why` is for the person who looks on."""
        self.stopping, self.why_stopped = True, why or self.why_stopped

    def restore(self, checkpoint: Checkpoint) -> None:
        """Stop, and end with an earlier state: one that `checkpoint` returned in `on_evaluation`."""
        self.stop()
        self.to_restore = checkpoint

    def checkpoint(self) -> Checkpoint:
        """Everything that is needed to continue from here."""
        seconds = self.clock.seconds() if self.round else 0.0
        releases = dict(self.engine.releases.of)
        privates = dict(self.engine.private_states())
        return Checkpoint(self.round, seconds, self.shared, privates, releases, **self.algorithm.kinds(self.shared))

    def privacy(self) -> dict[str, Any] | None:
        """(ε, δ) of what has left the clients so far, and what they do not cover; None where nothing is clipped."""
        if self.algorithm.settings.privacy.clip is None:
            return None
        return spent(self.algorithm, self.engine.releases.most)

    def prepare(self) -> None:
        """Make the state the one that is evaluated, saved and served, once per round."""
        if self._prepared_after != self.round:
            self.shared = prepare(self.algorithm, self.engine, self.shared)
            self._prepared_after = self.round

    def model(self) -> Model:
        """The model as it is; prepared after an evaluation and at the end."""
        return model_of(self.algorithm, self.engine, self.shared)

    def evaluate(self) -> None:
        """Evaluate the state after this round; the time that it takes is not counted as training."""
        costs = self.clock.stop(self.round) | self.engine.traffic.metrics() | self._privacy_metrics()
        if self.engine.repeated:  # since the last evaluation
            costs["repeated_steps"] = dict(self.engine.repeated)
            self.engine.repeated.clear()
        self.metrics = {"round": self.round, **self.measure(), **costs} | self._refused_metrics()
        self.history.append(self.metrics)
        self.notify("on_evaluation", self.metrics)
        self.clock.start()

    def measure(self) -> dict[str, Any]:
        """The metrics on the test rows and, if there are any, on validation rows; across sites, what they counted."""
        if self.federation is None:
            with suppress(TooFewSites):
                self.prepare()
                return counted(self.algorithm, self.engine, self.shared)
            return {"clients": {}}
        found: dict[str, Any] = {}
        tested = self.run is not None or has_test_rows(self.federation)
        if tested or self.validation:
            self.prepare()
            model = self.model()
        if tested:
            parameters = learnt_parameters(self.algorithm, self.shared, model.privates[0])
            known = evaluate(model, self.federation, self.engine.map, full=self.finished)
            found = {**known, "parameters": parameters}
        if self.validation:
            found["validation"] = evaluate(model, self.validation, self.engine.map, full=self.finished)
        return found

    def evaluate_again(self) -> None:
        """Evaluate a run that was finished when it was resumed, if its last metrics were lost. Across sites in any
        case: a site that missed the end gets the last state with it."""
        assert self.run is not None
        assert self.resumed is not None
        known = next((line for line in self.run.metrics() if line["round"] == self.round), {})
        if known and self.federation is not None:
            return
        self.engine.begin_round(self.round - 1)
        metrics = self.measure() | self._privacy_metrics()
        if not (known and self.engine.absent):  # never fewer sites than before
            seconds = self.resumed.seconds
            costs = {"seconds": seconds, "seconds_per_round": seconds / self.round}
            self.run.record({**costs, **known, "round": self.round, **metrics})

    def _privacy_metrics(self) -> dict[str, Any]:
        return {} if (found := self.privacy()) is None else {"privacy": found}

    def note_refused(self) -> None:
        """Whose replies of this round were refused."""
        self.refused.update(self.engine.refused.keys())
        self.why_refused |= self.engine.refused

    def _refused_metrics(self) -> dict[str, Any]:
        if not self.refused:
            return {}
        return {
            "refused": {
                name: {"rounds": rounds, "why": self.why_refused[name]} for name, rounds in self.refused.most_common()
            }
        }

    def notify(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            if getattr(type(callback), hook) is not getattr(Callback, hook):
                getattr(callback, hook)(self, *arguments)

    @contextmanager
    def set_up(self) -> Iterator[None]:
        """Callbacks open what they need, and close it whatever happens."""
        with ExitStack() as stack:
            for callback in self.callbacks:
                callback.setup(self)
                stack.callback(callback.teardown, self)
            yield
