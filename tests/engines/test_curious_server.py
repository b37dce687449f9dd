"""Servers that would read rows: what a site answers, when and how often, whatever it is asked."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from fedspm.algorithms import ALGORITHMS, algorithm_named
from fedspm.core.algorithm import Task
from fedspm.engines import wire
from fedspm.engines.rows import save_rows
from fedspm.engines.site import Site, SiteConfig
from small import small_settings, toy_rows

NAMES, FEATURES = ("north", "south"), 6
BLOCK = {"encoder": "mlp", "momentum": 0.0, "dimension": 4}


class Server:
    """Asks one site whatever it likes."""

    def __init__(self, folder, settings, rows, **site):
        save_rows(folder / "rows.safetensors", *rows)
        made = {"name": "north", "rows": str(folder / "rows.safetensors"), "state": folder / "state", "device": "cpu"}
        self.config = SiteConfig(**made, algorithms=tuple(ALGORITHMS), **site)
        self.site = Site(self.config)
        task = Task((FEATURES,), 2, NAMES, (len(rows[1]), len(rows[1])))
        self.algorithm = algorithm_named(settings.algorithm)(settings, task)
        known = {"names": NAMES, "counts": task.counts, "shape": task.shape, "classes": ["ill", "well"]}
        self.description = known | {"settings": settings.model_dump(mode="json")}
        self.refusals = []

    def ask(self, step, turn, exchange, shared=None, round=None, run="run1", **arguments):
        """The tensors of a reply, or None: then `refusals` has the reason."""
        header = {"tag": str(wire.Tag(run, turn, exchange)), "step": step, "kept": []}
        header["round"] = max(0, turn - 1) if round is None else round
        if step == "enrol":
            header["description"] = json.dumps(self.description)
        reply = self.site.answer(wire.request(header, shared or {}, arguments))
        if wire.header_of(reply)["kind"] == "refusal":
            self.refusals.append(wire.header_of(reply)["why"])
            return None
        return wire.tensors_of(reply, wire.REPLY)

    def start(self):
        """Enrols the site; what it says of its features, standardised."""
        self.ask("enrol", 0, 0)
        sums = self.ask("describe", 0, 1)
        if sums is None:
            return None
        mean = sums["sum"] / sums["count"]
        scale = (sums["square"] / sums["count"] - mean.square()).sqrt()
        return {"input.mean": mean.float(), "input.scale": scale.float()}


def found(rows, guesses, tolerance):
    """How many of the rows a guess comes near to, relative to their length."""
    if not guesses:
        return 0
    distance = torch.cdist(torch.as_tensor(rows).double(), torch.stack(guesses).double()).min(1).values
    return int((distance < tolerance * torch.as_tensor(rows).double().norm(dim=1)).sum())


def turning_clusters(server, times=600):
    """Two clusters whose border turns by a hair: where one row changes sides, the difference of the sums is that row."""
    shared = server.start()
    if shared is None or server.ask("moments", 0, 2, shared) is None:
        return []
    guesses, last = [], None
    for k, angle in enumerate(np.linspace(0, np.pi, times)):
        u = torch.zeros(FEATURES, dtype=torch.float64)
        u[1], u[2] = np.cos(angle), np.sin(angle)
        reply = server.ask("cluster", 0, 3 + k, shared, centres=1e-4 * torch.stack([u, -u]))
        if reply is None:
            break
        if last is not None and abs(float(reply["count"][0] - last["count"][0])) == 1:
            guesses.append((reply["sum"][0] - last["sum"][0]) * (reply["count"][0] - last["count"][0]))
        last = reply
    return guesses


def coarse(rows, server):
    """What k-means sees of the rows."""
    x = torch.from_numpy(rows[0]).double()
    return (x - x.mean(0)) / x.std(0, correction=0)


NOISY = {"privacy": {"clip": 1.0, "noise": 8.0}, "em": {"start": "random"}}


def test_a_server_that_turns_clusters_by_a_hair_reads_no_row(tmp_path):
    rows = toy_rows(200, 0.0, False, 0)
    server = Server(tmp_path, small_settings(**NOISY), rows, min_noise=8.0)
    guesses = turning_clusters(server)
    assert found(coarse(rows, server), guesses, 1e-3) == 0
    assert "the settings of this run do not use the step 'moments'" in server.refusals[0]
