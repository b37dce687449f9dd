"""One training of a grid, in a process of its own: `python -m fedspm.experiments.worker`, spoken to in JSON lines.

stdin: {"folder": …, "config": {…}, "command": …}; stdout: one line per round, with its accuracies if it was evaluated.
The training begins, or continues if it was begun before. If nobody listens any more, it stops.
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
from fedspm.runs.compatibility import differences, prolongs
from fedspm.runs.config import Config, resolve
from fedspm.runs.folder import Run
from fedspm.training.loop import train


class Teller:
    """Tells the parent about every round; stops after a round on SIGINT."""

    def __init__(self, out: TextIO) -> None:
        self.stopping = False
        self._out = out
        signal.signal(signal.SIGINT, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def round_done(self, round: int) -> bool:
        self._tell({"round": round})
        return self.stopping

    def evaluated(self, metrics: dict[str, Any]) -> None:
        self._tell({name: metrics[name] for name in ("round", "system_accuracy", "average_accuracy")})

    def _tell(self, line: dict[str, Any]) -> None:
        print(json.dumps(line), file=self._out, flush=True)


def train_cell(folder: Path, config: Config, command: str, teller: Teller) -> None:
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # Another grid may be about to begin the same cell, and a killed one's orphan lives until its next round.
    with Run(folder).locked(lambda: not teller.stopping):
        checkpoint = None
        if (folder / "manifest.json").exists():
            run = Run.open(folder, config.encoders)
            refuse_other_settings(run, config)
            checkpoint, federation = run.go_on()
            run.prolong(config.rounds, command)
        else:
            Run(folder).sweep()  # killed before the manifest was there: nothing has begun
            (folder / "config.toml").unlink(missing_ok=True)
            run, federation = Run.begin(folder, config, command)
        done = train(config, federation, run.algorithm(), run, teller, checkpoint)
        if done == config.rounds:
            write_report(run, run.model(), federation)


def refuse_other_settings(run: Run, config: Config) -> None:
    """More rounds of the same schedule are welcome."""
    known = run.config
    if prolongs(known, config):
        raise FedSPMError(
            f"{run.path} has gone on to {known.rounds} rounds; ask for --rounds {known.rounds}, or give another folder"
        )
    different = differences(known, config)
    if different and not prolongs(config, known):
        raise FedSPMError(
            f"{run.path} was made with other settings ({'; '.join(different)}); choose another folder, or delete it"
        )


def main() -> None:
    order = json.load(sys.stdin)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a plugin prints must not be taken for a report
        _main(order, Teller(out))


def _main(order: dict[str, Any], teller: Teller) -> None:
    try:
        train_cell(Path(order["folder"]), resolve(order["config"]), order["command"], teller)
    except BrokenPipeError:  # the grid is gone; what is done so far is in the last checkpoint
        os._exit(1)
    except FedSPMError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
