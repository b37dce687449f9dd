"""What onboarding is worth: a client that was held out joins, against a run that had it from the start.

    fedspm train --data fashion-mnist --rounds 60 --set data.without=client-7 --out seven
    fedspm train --data fashion-mnist --rounds 60 --out eight
    python benchmarks/onboarding.py seven --client client-7 --eight eight

Both ways: with the other clients' help, and from the sketch. Accuracy is on everybody's test rows, the held-out
client's included; before it joins, its rows are answered by somebody else.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from fedspm.data.federation import Federation
from fedspm.engines.local import LocalEngine
from fedspm.federated.evaluation import Model, purity_count
from fedspm.mixture.onboarding import Newcomers
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.training.membership import onboard


def whole(run: Run, name: str) -> Federation:
    """The federation with the client that was held out."""
    settings = run.config.to_dict()
    settings["data"]["without"] = [each for each in run.config.data.without if each != name]
    return resolve(settings).federation()


@torch.no_grad()
def before(model: Model, federation: Federation, name: str) -> tuple[float, float]:
    """System accuracy on all test rows and on the held-out client's, with nobody there who knows them."""
    right: dict[str, list[torch.Tensor]] = {}
    assert federation.test
    for client, part in zip(federation.names, federation.test, strict=True):
        for x, y in zip(part.x.split(256), part.y.split(256), strict=True):
            right.setdefault(client, []).append(model.answer(model.embed(x))[1].argmax(1) == y)
    answers = {client: torch.cat(found).double() for client, found in right.items()}
    return float(torch.cat(list(answers.values())).mean()), float(answers[name].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="trained without the client")
    parser.add_argument("--client", required=True)
    parser.add_argument("--eight", type=Path, help="trained with it from the start")
    arguments = parser.parse_args()
    run, name = Run.open(arguments.run), arguments.client
    federation = whole(run, name)
    assert federation.test
    i = federation.names.index(name)
    if not run.has_sketch():  # stopped before its end
        algorithm, checkpoint = run.algorithm(), run.latest()
        assert isinstance(algorithm, Newcomers)
        with LocalEngine(federation.without([name]), seed=run.config.seed, workers=run.config.workers) as engine:
            engine.restore(checkpoint.round, checkpoint.privates)
            run.save_sketch(vars(algorithm.sketch(checkpoint.shared, engine)))
    rows = "{:28} system {:.4f}, of its rows {:.4f}"
    print(rows.format(f"without {name}", *before(run.model(), federation, name)), flush=True)
    with tempfile.TemporaryDirectory() as place:
        part, held = federation.train[i], federation.test[i]
        labels = federation.classes
        arrays = {"x": part.x, "y": labels[part.y.numpy()], "x_test": held.x, "y_test": labels[held.y.numpy()]}
        np.savez(Path(place) / "rows.npz", **{key: np.asarray(value) for key, value in arrays.items()})
        for by_sketch in (False, True):
            began = time.perf_counter()
            out = Path(place) / f"out-{by_sketch}"
            done = onboard(run, name, Path(place) / "rows.npz", out, "benchmarks/onboarding.py", by_sketch=by_sketch)
            metrics, seconds = done.run.last_metrics(), time.perf_counter() - began
            mine = metrics["clients"][name]
            purity = float("nan")
            if federation.truth:
                found = done.run.latest().privates[name]["responsibilities"].argmax(1)
                purity = purity_count(found, federation.truth.train[i]) / len(found)
            print(
                rows.format(
                    f"joined, {'sketch' if by_sketch else 'exchanges'}",
                    metrics["system_accuracy"],
                    mine["system_accuracy"],
                )
            )
            print(
                f"  routing {metrics['routing_accuracy']:.4f}, of its rows {mine['routing_accuracy']:.4f}; "
                f"its own accuracy {mine['accuracy']:.4f}, purity {purity:.4f}; "
                f"γ off by {done.misfit:.2g}; {done.sent:,} bytes; {seconds:.0f} s",
                flush=True,
            )
    if arguments.eight:
        metrics = Run.open(arguments.eight).last_metrics()
        mine = metrics["clients"][name]
        print(rows.format("from the start", metrics["system_accuracy"], mine["system_accuracy"]))
        print(f"  routing {metrics['routing_accuracy']:.4f}, of its rows {mine['routing_accuracy']:.4f}")


if __name__ == "__main__":
    main()
