"""One training of a grid, in a process of its own: `python -m fedspm.experiments.worker`, spoken to in JSON lines.

stdin: {"folder": …, "config": {…}, "command": …}; stdout: one line per round, and one with the
accuracies per evaluation. A folder that was begun before is resumed. If nobody listens any more, it
stops.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

from fedspm.base.errors import FedSPMError
from fedspm.base.files import explained
from fedspm.report.html import write_report
from fedspm.runs.compatibility import differences, extends
from fedspm.runs.config import Config, resolve
from fedspm.runs.folder import Run
from fedspm.training.callbacks import Callback
from fedspm.training.loop import train
from fedspm.training.training import Training


class RoundReporter(Callback):
    """Tells the parent process about every round; stops after a round on SIGINT."""

    def __init__(self, out: TextIO) -> None:
        self.stopping = False
        self._out = out
        signal.signal(signal.SIGINT, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def on_round_end(self, training: Training) -> None:
        self._tell({"round": training.round})
        if self.stopping:
            training.stop()

    def on_evaluation(self, training: Training, metrics: dict[str, Any]) -> None:
        self._tell({name: metrics[name] for name in ("round", "system_accuracy", "average_accuracy")})

    def _tell(self, line: dict[str, Any]) -> None:
        print(json.dumps(line), file=self._out, flush=True)


def train_cell(folder: Path, config: Config, command: str, reporter: RoundReporter) -> None:
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # Another grid may be about to begin the same cell, and a killed one's orphan lives until its next round.
    with Run(folder).locked(lambda: not reporter.stopping):
        checkpoint = None
        if (folder / "manifest.json").exists():
            run = Run.open(folder, config.outside_names)
            refuse_other_settings(run, config)
            checkpoint, federation = run.resume()
            run.extend(config.rounds, command)
        else:
            Run(folder).remove_leftovers()  # killed before the manifest was there: nothing has begun
            (folder / "config.toml").unlink(missing_ok=True)
            run, federation = Run.begin(folder, config, command)
        training = train(config, run.algorithm(), federation, run=run, checkpoint=checkpoint, callbacks=[reporter])
        if training.finished:
            write_report(run, run.model(), federation)


def refuse_other_settings(run: Run, config: Config) -> None:
    """More rounds of the same schedule are welcome."""
    known = run.config
    if extends(known, config):
        raise FedSPMError(
            f"{run.path} has gone on to {known.rounds} rounds; ask for --rounds {known.rounds}, or give another folder"
        )
    different = differences(known, config)
    if different and not extends(config, known):
        raise FedSPMError(
            f"{run.path} was made with other settings ({'; '.join(different)}); choose another folder, or delete it"
        )


def main() -> None:
    order = json.load(sys.stdin)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a plugin prints must not be taken for a report
        _main(order, RoundReporter(out))


def _main(order: dict[str, Any], reporter: RoundReporter) -> None:
    try:
        train_cell(Path(order["folder"]), resolve(order["config"]), order["command"], reporter)
    except BrokenPipeError:  # the grid is gone; what is done so far is in the last checkpoint
        os._exit(1)
    except FedSPMError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
