"""How far a round climbs: the exact empirical likelihood before and after it."""

from typing import TYPE_CHECKING

from fedspm.runs.folder import Run
from fedspm.training.callbacks.base import Callback

if TYPE_CHECKING:
    from fedspm.likelihood.diagnostics import Before, Diagnosis
    from fedspm.training.training import Training


class LikelihoodDiagnosis(Callback):
    """Writes diagnostics.jsonl every `every` rounds, for `fedspm diagnose`: docs/likelihood.md."""

    def __init__(self, run: Run, every: int):
        self.run, self.every = run, every
        self._diagnosis: Diagnosis | None = None
        self._before: Before | None = None

    def on_start(self, training: "Training") -> None:
        from fedspm.likelihood.diagnostics import Diagnosis  # SciPy is slow to import

        assert training.federation is not None
        engine = training.engine
        parts = [engine.send({"x": part.x, "y": part.y}) for part in training.federation.train]
        self._diagnosis = Diagnosis(training.algorithm, [(part["x"], part["y"]) for part in parts], engine.map)

    def on_round_start(self, training: "Training") -> None:
        self._before = None
        if self._diagnosis and training.round % self.every == 0:
            engine = training.engine
            with training.clock.paused():
                privates = list(engine.private_states().values())
                self._before = self._diagnosis.before(engine.send(training.shared), privates)

    def on_round_end(self, training: "Training") -> None:
        if self._before:
            with training.clock.paused():
                found = self._before.after(training.engine.send(training.shared))
                self.run.record({"round": training.round - 1, **found}, "diagnostics.jsonl")
