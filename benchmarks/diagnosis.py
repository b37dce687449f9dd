"""What diagnosing a round costs against the round itself: `python benchmarks/diagnosis.py RUN [REPEATS]`.

CPU seconds of one thread, so that other work on the machine counts little. Rounds and diagnoses alternate.
"""

import statistics
import sys
import time
from pathlib import Path

from fedspm.engines.local import LocalEngine
from fedspm.likelihood.diagnostics import Diagnosis
from fedspm.runs.folder import Run
from fedspm.training.loop import one_round


def main(folder: Path, repeats: int) -> None:
    run = Run.open(folder)
    checkpoint, federation = run.resume()
    assert checkpoint is not None
    algorithm, shared = run.algorithm(), checkpoint.shared
    with LocalEngine(federation, seed=run.config.seed, workers=1, device="cpu") as engine:
        engine.privates = dict(checkpoint.privates)
        diagnosis = Diagnosis(algorithm, engine.data, engine.map)
        ratios = []
        for number in range(repeats):
            began = time.process_time()
            before = diagnosis.before(shared, list(engine.privates.values()))
            middle = time.process_time()
            shared = one_round(algorithm, engine, shared, min(run.config.rounds - 1, checkpoint.round) - 100 + number)
            later = time.process_time()
            line = before.after(shared)
            ended = time.process_time()
            looked, trained = middle - began + ended - later, later - middle
            ratios.append(looked / trained)
            print(f"round {trained:.2f} s, diagnosis {looked:.2f} s, eq. 6 solved: {line['fixed'] is not None}")
    print(f"a diagnosis costs {statistics.median(ratios):.2f} times the round, median of {repeats}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
