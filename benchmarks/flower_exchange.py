"""Seconds an exchange in a deployment on loopback: sites with a worker that stays, or Flower's plain SuperNodes.

python benchmarks/flower_exchange.py [plain] [ROUNDS]        FedAvg on toy rows, one exchange a round, two sites
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedspm import Federation
from fedspm.base.files import write_atomically
from fedspm.base.ports import free_port
from fedspm.deploy.demo import Loopback, across_sites, loopback, script
from fedspm.deploy.launch import follow, launch
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run


def plain_site(net: Loopback, name: str) -> int:
    """What Flower's own documentation types."""
    site = net.sites[name]
    command = [script("flower-supernode"), "--superlink", net.superlink, "--root-certificates", str(net.certificates)]
    command += ["--auth-supernode-private-key", str(site.parent / "key"), "--port", str(free_port())]
    command += ["--node-config", f'site="{site}"']
    return net.processes.start(f"site-{name}", command, site.parent / "flower")


def main() -> None:
    plain = "plain" in sys.argv
    rounds = next((int(word) for word in sys.argv[1:] if word.isdigit()), 5)
    if plain:
        Loopback.start_site = plain_site
    draw = np.random.default_rng(0)
    rows = {name: (draw.normal(size=(200, 6)), draw.integers(0, 2, 200)) for name in ("north", "south")}
    federation = Federation.from_arrays(rows, test_fraction=0.3)
    config = resolve({"algorithm": "fedavg", "rounds": rounds, "eval_every": rounds})
    config = across_sites(config, federation, wait=300.0)
    with tempfile.TemporaryDirectory() as folder, loopback(federation, config, Path(folder) / "net") as net:
        run = net.folder / "run"
        run.mkdir()
        write_atomically(run / "config.toml", config.to_toml())
        began = time.monotonic()
        attempt = launch(run, net.superlink, net.certificates)
        follow(run, attempt, lambda line: print(line, flush=True))
        each = Run(run).last_metrics()["seconds_per_round"]
        how = "plain SuperNodes" if plain else "a worker that stays"
        print(f"{how}: {each:.2f} s an exchange over {rounds}, {time.monotonic() - began:.1f} s in all")


if __name__ == "__main__":
    main()
