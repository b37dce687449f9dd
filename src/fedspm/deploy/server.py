"""The server's side of a run across sites: what runs inside Flower's ServerApp."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.base.files import write_atomically
from fedspm.base.printable import printable
from fedspm.deploy.launch import LOG, outcome_of
from fedspm.deploy.polling_patch import poll_parts_sooner
from fedspm.engines.flower.handshake import (
    Introduction,
    agreed_task,
    by_name,
    introduce,
    require_rows,
    require_shares,
)
from fedspm.engines.flower.server import FlowerEngine
from fedspm.engines.flower.transport import Post, Waiting
from fedspm.runs.config import Config
from fedspm.runs.folder import Run
from fedspm.runs.manifest import site_manifest
from fedspm.training.callbacks import Callback
from fedspm.training.loop import train
from fedspm.training.training import Training

POLL = 0.1  # seconds between looks for answers
ENDING = 60.0  # seconds in which the server of an earlier attempt, whose SuperLink was killed, has surely ended

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train in the run folder that the run configuration names, and write there how it ended."""
    folder = Path(str(context.run_config["folder"]))
    left = outcome_of(folder, str(context.run_config["attempt"]))
    try:
        serve_run(grid, folder, Log(folder / LOG))
        outcome: dict[str, Any] = {"done": True}
    except FedSPMError as error:
        outcome = {"done": False, "error": str(error)}
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt | SystemExit)
        why = "the server was stopped" if stopped else repr(error)
        write_atomically(left, json.dumps({"done": False, "error": why}))
        raise
    write_atomically(left, json.dumps(outcome, ensure_ascii=False))


class Log(Callback):
    """Lines for whoever follows the run: what the server says, every round and every evaluation."""

    def __init__(self, path: Path):
        self._path = path

    def __call__(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {printable(line)}\n")

    def on_round_end(self, training: Training) -> None:
        self(f"round {training.round} done")

    def on_evaluation(self, training: Training, metrics: dict[str, Any]) -> None:
        found = {name: metrics.get(f"{name}_accuracy") for name in ("average", "routing")}
        shown = "".join(f"   {name} {value:.3f}" for name, value in found.items() if value is not None)
        self(f"round {metrics['round']}{shown}   {metrics['seconds_per_round']:.2f} s a round")


def serve_run(grid: Grid, folder: Path, log: Log) -> None:
    poll_parts_sooner()
    torch.set_num_threads(1)  # as every engine: the bits must not depend on the machine's cores
    config = Run(folder).config
    run = Run(folder, config.outside_names)  # which the operator has named, or allowed to resume with
    post = Post(grid, Waiting(config.sites.wait, config.sites.min_clients, POLL))
    soon = time.monotonic() + ENDING  # whoever follows the run looks at the lock now and then, too
    with run.locked(lambda: time.monotonic() < soon):
        nodes: dict[str, int] = {}
        if run.begun():
            run.remove_leftovers()
            for sentence in run.changes():
                log(f"warning: {sentence}")
            log(f"going on after round {run.last_round() or 0}")
        else:
            sites = gather(post, config, log)
            nodes = {name: site.node for name, site in sites.items()}
            task, classes = agreed_task(sites, config.sites.names)
            for name, why in (task.schema.dropped if task.schema else {}).items():
                log(f"column {name!r} is left out: it {why}")
            algorithm = build_algorithm(config, task)
            run.describe(site_manifest(algorithm, classes, all(site.pixels for site in sites.values())))
        algorithm = run.algorithm()
        engine = FlowerEngine(post, algorithm, np.asarray(run.classes), run.id, nodes, log)
        checkpoint = run.latest() if run.has_checkpoint() else None
        if checkpoint is None:
            log("the start: statistics of x and the first components, some tens of short exchanges; then round 1")
        train(config, algorithm, None, engine=engine, run=run, checkpoint=checkpoint, callbacks=[log])


def gather(post: Post, config: Config, log: Callable[[str], None]) -> dict[str, Introduction]:
    """Wait until every site that the configuration names has introduced itself."""
    wanted = config.sites.names
    if len(wanted) < 2:
        raise FedSPMError('name the sites of this run in its configuration: sites.names = ["north", "south"]')
    found: dict[str, Introduction] = {}
    asked: set[int] = set()
    end = time.monotonic() + config.sites.wait
    while len(found) < len(wanted):
        if strangers := post.online() - asked:
            for name, site in introduce(post, strangers, 60.0, log):
                asked.add(site.node)
                if name in wanted:
                    require_rows(name, site, config.sites.max_rows)
                    found = by_name([*found.items(), (name, site)])
                    log(f"site {name!r} is here, with {site.rows:,} rows")
                else:
                    log(f"ignored: a node calls itself {name!r}, which is not in sites.names")
        if len(found) < len(wanted) and time.monotonic() > end:
            missing = ", ".join(name for name in wanted if name not in found)
            raise FedSPMError(f"these sites did not come within {config.sites.wait:g} s: {missing}")
        time.sleep(POLL)
    require_shares(found, config.sites.max_share)
    return found
