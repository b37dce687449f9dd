"""What a person sees of a training in the terminal, and how Ctrl-C stops it cleanly."""

import signal
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as ProgressBar

from fedspm.base.printable import printable
from fedspm.training.callbacks.base import Callback

if TYPE_CHECKING:
    from fedspm.training.training import Training

SHOWN = ("system", "average", "routing")  # accuracies in the line of an evaluation


class Progress(Callback):
    """A bar with the time left, and a line for every evaluation."""

    def __init__(self, console: Console | None = None):
        self._console = console
        self._bar: ProgressBar | None = None
        self._task = TaskID(0)

    def setup(self, training: "Training") -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("· left"),
            TimeRemainingColumn(elapsed_when_finished=False),
        )
        console = self._console or Console(markup=False, emoji=False, highlight=False)
        self._bar = ProgressBar(*columns, console=console, refresh_per_second=4, speed_estimate_period=600)
        self._task = self._bar.add_task("training", total=training.config.rounds, completed=training.round)
        self._bar.start()

    def on_round_end(self, training: "Training") -> None:
        if self._bar:
            self._bar.update(self._task, completed=training.round)
        for client, why in training.engine.refused.items():
            if training.refused[client] == 1:  # how often it was in the end is said then
                self._say(f"round {training.round}: left out: {why}")

    def on_evaluation(self, training: "Training", metrics: dict[str, Any]) -> None:
        rounds = training.config.rounds
        line = f"round {metrics['round']:>{len(str(rounds))}}/{rounds}"
        for what, found in (("", metrics), ("validation ", metrics.get("validation", {}))):
            for name in SHOWN:
                if (value := found.get(f"{name}_accuracy")) is not None:
                    line += f"   {what}{name} {value:.3f}"
        self._say(f"{line}   {metrics['seconds_per_round']:.2f} s a round")

    def on_end(self, training: "Training") -> None:
        if training.why_stopped:
            self._say(training.why_stopped)
        for client, rounds in training.refused.most_common():
            if rounds > 1:
                self._say(f"{client} was left out of {rounds} rounds; the last time: {training.why_refused[client]}")

    def teardown(self, training: "Training") -> None:
        if self._bar:
            self._bar.stop()
        self._bar = None

    def _say(self, line: str) -> None:
        if self._bar:
            self._bar.console.print(printable(line))


class StopOnInterrupt(Callback):
    """Ctrl-C ends the training after the round under way; pressed again, at once."""

    def __init__(self, console: Console):
        self._console = console
        self._pressed = False
        self._before: Any = None

    def setup(self, training: "Training") -> None:
        self._pressed = False
        self._before = signal.signal(signal.SIGINT, self._stop)

    def on_round_end(self, training: "Training") -> None:
        if self._pressed:
            training.stop()

    def teardown(self, training: "Training") -> None:
        signal.signal(signal.SIGINT, self._before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._pressed:
            raise KeyboardInterrupt
        self._pressed = True
        self._console.print("stopping after this round; press Ctrl-C again to stop at once")
