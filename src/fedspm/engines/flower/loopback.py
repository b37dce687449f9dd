"""All sites of a Flower run on this machine: their folders, and a server that may look into them.

Simulation and the tests use it. Across real machines the server has `FlowerEngine`, which sees no private state.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedspm.base.files import as_file_name, private_folder
from fedspm.base.tensors import Tensors
from fedspm.data.federation import Federation
from fedspm.engines.flower.contract import SiteConfig
from fedspm.engines.flower.server import EVALUATION, FlowerEngine
from fedspm.engines.flower.site_data import rows_of, write_rows
from fedspm.engines.flower.site_store import Store
from fedspm.engines.flower.transport import Post
from fedspm.federated.algorithm import Algorithm

NO_SECRET = ""  # of sites on one machine: they have the noise of the in-process engine, there is nothing to hide


def site_configs(federation: Federation, algorithm: Algorithm, folder: Path, device: str) -> list[SiteConfig]:
    """A site for every client, in a folder of its own: its rows and its private state."""
    configs = []
    settings = algorithm.settings
    blocks, usual = (settings.predictor, settings.router), SiteConfig.model_fields
    limits: dict[str, Any] = {  # its own, or those of the run: whoever trains on one machine has the rows anyway
        "min_batch": min(usual["min_batch"].default, *federation.counts, *(block.batch_size for block in blocks)),
        "min_steps": min(usual["min_steps"].default, *(block.steps or 1 for block in blocks)),
        "min_learning_rate": 0.0,
        "max_learning_rate": max(
            usual["max_learning_rate"].default, *map(algorithm.learning_rate, ("predictor", "router"))
        ),
        "max_rounds": sys.maxsize,
        "max_starts": sys.maxsize,
        "show_no_row": False,
    }
    for i, name in enumerate(federation.names):
        place = (folder / f"{i:05d}-{as_file_name(name)}").resolve()
        write_rows(private_folder(place) / "rows.safetensors", rows_of(federation, i))
        configs.append(
            SiteConfig(
                name=name,
                rows=str(place / "rows.safetensors"),
                state=place / "state",
                algorithms=(settings.algorithm,),
                encoders=settings.encoders,
                transforms=settings.wire.transforms,
                min_count=settings.min_count,
                device=device,
                **limits,
            )
        )
    return configs


class LoopbackEngine(FlowerEngine):
    """A Flower engine that offers what the in-process engine offers, because everything is on this machine."""

    def __init__(
        self,
        post: Post,
        algorithm: Algorithm,
        federation: Federation,
        run: str,
        sites: list[SiteConfig],
        nodes: Mapping[str, int],
        say: Callable[[str], None],
    ):
        classes = np.asarray(federation.classes)
        super().__init__(post, algorithm, classes, run, dict(nodes), say)
        self._stores = {site.name: Store.of(site.state, run) for site in sites}

    def private_states(self) -> dict[str, Tensors]:
        """The sites' private states, from their disks."""
        return {name: store.newest() for name, store in self._stores.items()}

    def restore(self, round: int, privates: Mapping[str, Tensors]) -> None:
        """Put the sites back to a checkpoint; the next round follows it."""
        for name, private in privates.items():
            self._stores[name].remember(self.description)
            self._stores[name].keep((round, 2 * EVALUATION), private)
