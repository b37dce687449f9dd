"""The run folder: config.toml, manifest.json, metrics.jsonl, checkpoints/round-NNNNN/, report.html.

Everything is written atomically, tensors as safetensors and the rest as text; nothing is ever unpickled.
"""

import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.base.files import explained, remove_partial, write_atomically
from fedspm.base.plugins import require_allowed
from fedspm.base.tensors import Tensors, read_tensors, write_tensors
from fedspm.data.federation import Federation
from fedspm.data.settings import IN_MEMORY, OWN
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.evaluation import Model
from fedspm.federated.task import Task
from fedspm.mixture.semiparametric import require_semiparametric
from fedspm.runs.checkpoints import (
    FOLDER,
    Checkpoint,
    checkpoint_folders,
    newest_checkpoint,
    round_of,
    write_checkpoint,
)
from fedspm.runs.compatibility import SETTINGS_DIGEST, changes_since, missing_metrics, settings_digest
from fedspm.runs.config import Config, load_config, recorded
from fedspm.runs.lock import locked, refuse_existing
from fedspm.runs.manifest import ELSEWHERE, manifest, read_manifest
from fedspm.runs.metrics_log import Line, add_to_log, read_counts, read_log, write_counts

RELEASES = "releases.json"
SKETCH = "sketch.safetensors"
GIVEN = "given"  # encoder of a model whose network was given from Python


class Run:
    """A run folder that exists. What it names from outside this package is run only if `allowed` has its name."""

    def __init__(self, path: Path, allowed: Collection[str] = ()):
        self.path = path
        self.allowed = frozenset([allowed] if isinstance(allowed, str) else allowed)

    @classmethod
    def begin(cls, path: Path, config: Config, command: str) -> tuple["Run", Federation]:
        """A new run, with the data it trains on; whatever is wrong with either is said before the folder is made."""
        refuse_existing(path, config)
        federation = config.federation()
        if not any(map(len, federation.test or ())):
            raise FedSPMError("no client has a row to evaluate on; set a larger data.test_fraction, or bring test rows")
        algorithm = build_algorithm(config, Task.of_federation(federation))
        if config.variant != "1x" and not algorithm.variants:
            raise FedSPMError(f"variant = {config.variant}: {config.algorithm} has no variants; leave it out")
        if config.diagnose_every:
            require_semiparametric(algorithm)
        return cls.create(path, config, manifest(federation, algorithm, command)), federation

    def resume(self) -> tuple["Checkpoint | None", Federation]:
        """Where a stopped or killed run continues, and its data; None if it was killed before its first checkpoint."""
        self.remove_leftovers()
        for sentence in self.changes():
            warnings.warn(sentence, stacklevel=2)
        self.metrics()  # damage is better found now than at the next evaluation
        return (self.latest() if self.has_checkpoint() else None), self.federation()

    def extend(self, rounds: int, command: str) -> None:
        """More rounds of the same schedule: the run continues where it ended, as if it had been meant to all along,
        except that the evaluation of its old end stays among the metrics."""
        config = self.config
        if rounds == config.rounds:
            return
        if rounds < config.rounds:
            raise FedSPMError(
                f"{self.path} is to train {config.rounds} rounds, more than {rounds}; leave out --rounds, or train "
                "anew in another folder"
            )
        if rounds > config.schedule:
            raise FedSPMError(
                f"{self.path} no longer learns after round {config.schedule}, where its learning rate is zero; for "
                f"{rounds} rounds train anew, and give a longer --horizon if you want to decide later"
            )
        for name in (SKETCH, "report.html"):  # of parameters that will change; made again at the end
            (self.path / name).unlink(missing_ok=True)
        write_atomically(self.path / "config.toml", config.model_copy(update={"rounds": rounds}).to_toml())
        self.describe(self.manifest | {"command": f"{self.manifest.get('command', '')}; {command}"})

    def locked(self, patient: Callable[[], bool] = lambda: False) -> AbstractContextManager[None]:
        """Nobody else trains in this folder meanwhile; while `patient` returns true, it waits for whoever does."""
        return locked(self.path, patient)

    @classmethod
    def create(cls, path: Path, config: Config, manifest: Mapping[str, Any]) -> "Run":
        refuse_existing(path, config)
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
        run = cls(path, config.outside_names)  # which the user has named just now
        run.remove_leftovers()
        write_atomically(path / "config.toml", config.to_toml())
        run.describe(manifest)
        return run

    @classmethod
    def open(cls, path: Path, allowed: Collection[str] = ()) -> "Run":
        if not (path / "manifest.json").exists():
            raise FedSPMError(
                f"{path} is not a run: it has no manifest.json; give the folder that `fedspm train` wrote"
            )
        return cls(path, allowed)

    def begun(self) -> bool:
        return (self.path / "manifest.json").exists()

    def describe(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, with the digest of the settings as they are now. Across sites the folder comes first; who
        takes part is known when they have come."""
        content = {**manifest, SETTINGS_DIGEST: settings_digest(self._settings())}
        write_atomically(self.path / "manifest.json", json.dumps(content, indent=2, ensure_ascii=False))

    def changes(self) -> list[str]:
        """What is not as it was when the run was made or last extended, one sentence each."""
        config = self._settings()
        return changes_since(self.manifest, config, self.path) + missing_metrics(
            self.path, self.metrics(), self.last_round(), recorded(config).eval_every
        )

    def _settings(self) -> dict[str, Any]:
        """What config.toml says."""
        settings = load_config(path := self.path / "config.toml")
        if not settings:
            raise DamagedFile(
                f"{path} is empty; put the settings of this run back, which its report.html shows as well"
            )
        return settings

    @property
    def config(self) -> Config:
        return recorded(self._settings())

    @property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.path / "manifest.json")

    @property
    def across_sites(self) -> bool:
        """Then what is private, and the answers of the whole system, have never been here."""
        return self.config.engine == "flower"

    @property
    def id(self) -> str:
        """By which sites know this run; runs from before there were any go by the time they were made."""
        known = self.manifest
        return str(known.get("id") or re.sub(r"[^A-Za-z0-9_-]", "-", str(known.get("created", "run"))))

    @property
    def task(self) -> Task:
        return Task.of_manifest(self.manifest)

    @property
    def classes(self) -> np.ndarray:
        return np.asarray(self.manifest["classes"])

    def algorithm(self, networks: Mapping[str, nn.Module] | None = None) -> Algorithm:
        """The algorithm of this run. Networks that were given from Python have to be given again: they are code."""
        self.require_allowed(networks or {})
        return build_algorithm(self.config, self.task, networks)

    def require_allowed(self, networks: Collection[str] = ()) -> None:
        """Refuse code that only this folder names, but for encoders that `networks` replace: it may be anybody's."""
        roles = zip(("predictor", "router"), self.config.encoders, strict=True)
        built = {role: source for role, source in roles if role not in networks}
        if given := [role for role, source in built.items() if source == GIVEN]:
            what = f"a {given[0]} network of your own; give it again: {given[0]}=network"
            raise FedSPMError(f"{self.path} was trained with {what}")
        named = [each for each in self.config.outside_code if each.kind != "encoders" or each.name in built.values()]
        require_allowed(named, self.allowed)

    def model(self, networks: Mapping[str, nn.Module] | None = None) -> Model:
        """The newest checkpoint, ready to route and predict."""
        algorithm = self.algorithm(networks)
        checkpoint = self.latest()
        algorithm.require_fit(checkpoint.shared)
        if not checkpoint.privates:
            raise FedSPMError(f"{self.path} was trained across sites: what is needed to predict stayed with them")
        return Model(algorithm, checkpoint.shared, [checkpoint.privates[name] for name in self.task.names])

    # -- metrics -----------------------------------------------------------------------------------------------------

    def metrics(self) -> list[Line]:
        """What was evaluated, one line per evaluated round."""
        known_here = set() if self.across_sites else {"system_accuracy", "average_accuracy"}
        return read_log(self.path / "metrics.jsonl", {"clients", "seconds"} | known_here)

    def diagnostics(self) -> list[Line]:
        """What `diagnose_every` measured, one line per diagnosed round."""
        return read_log(self.path / "diagnostics.jsonl")

    def last_metrics(self) -> Line:
        metrics = self.metrics()
        if not metrics:
            how = f"`fedspm resume {quote(str(self.path))}` trains on"
            if self.config.data.name == IN_MEMORY:
                how = "use FederatedClassifier.load(path).evaluate(federation)"
            raise FedSPMError(f"{self.path} has no metrics; {how}")
        return metrics[-1]

    def record(self, line: Mapping[str, Any], file: str = "metrics.jsonl") -> None:
        """Add the line of a round to a log; lines of that round and later ones, left by a crash, are replaced."""
        add_to_log(self.path / file, line)

    def releases(self) -> dict[str, int]:
        """How many noised vectors each site was asked for, written before it was: more than the checkpoint knows of."""
        return read_counts(self.path / RELEASES)

    def save_releases(self, counts: Mapping[str, int]) -> None:
        write_counts(self.path / RELEASES, counts)

    # -- checkpoints and the sketch of the baseline ------------------------------------------------------------------

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
        write_checkpoint(self.path, checkpoint, keep)

    def latest(self) -> Checkpoint:
        return newest_checkpoint(self.path, self.task.names, across_sites=self.across_sites)

    def has_checkpoint(self) -> bool:
        return bool(checkpoint_folders(self.path))

    def last_round(self) -> int | None:
        """The round of the newest checkpoint."""
        return round_of(checkpoint_folders(self.path)[-1]) if self.has_checkpoint() else None

    def save_sketch(self, sketch: Mapping[str, Tensor]) -> None:
        write_tensors(self.path / SKETCH, sketch)

    def has_sketch(self) -> bool:
        return (self.path / SKETCH).exists()

    def sketch(self) -> Tensors:
        if not self.has_sketch():
            how = f"training writes it at its end, for an older run `fedspm resume {quote(str(self.path))}` does"
            if self.config.data.name == IN_MEMORY:
                how = "an older version of FederatedClassifier saved it; fit and save it again"
            raise FedSPMError(f"{self.path} has no sketch of the baseline; {how}")
        return read_tensors(self.path / SKETCH).tensors

    def remove_leftovers(self) -> None:
        """Remove what a killed process left half-written, and nothing else."""
        for folder in (self.path, self.path / FOLDER):
            remove_partial(folder)

    # -- the data it was made from -----------------------------------------------------------------------------------

    @property
    def has_rows(self) -> bool:
        """Can the federation be built again from the configuration?"""
        return self.config.data.name != IN_MEMORY and self.manifest["data_fingerprint"] != ELSEWHERE

    def federation(self) -> Federation:
        """The federation of this run, built again from its configuration and checked to be the same."""
        self.require_rows()
        require_allowed([code for code in self.config.outside_code if code.kind == "data"], self.allowed)
        federation = self.config.federation(again=True, schema=self.task.schema)
        self.require_same(federation)
        return federation

    def require_rows(self) -> None:
        if self.config.data.name == IN_MEMORY:
            raise FedSPMError(f"{self.path} was trained on arrays in memory, which are not in the run folder")
        if not self.has_rows:
            raise FedSPMError(f"the rows of {self.path} are not on this machine")
        if (data := self.config.data).name == OWN and data.path and not data.path.exists():
            raise FedSPMError(
                f"the data of {self.path} is no longer at {data.path}; put it back, or point data.path in "
                f"{self.path / 'config.toml'} to where it is"
            )

    def require_same(self, federation: Federation) -> None:
        """Refuse rows that are not those that the run was trained on."""
        if federation.fingerprint != (known := self.manifest["data_fingerprint"]):
            raise FedSPMError(
                f"the data of {self.path} has changed since the run began (fingerprint {federation.fingerprint}, "
                f"then {known}); point data.path in its config.toml to the original"
            )


def load_run(path: str | os.PathLike[str], *, allow: Collection[str] = ()) -> Run:
    """Open a run folder. `allow` names what it uses from outside this package and may run: encoders, algorithm, …"""
    return Run.open(Path(path), allow)
