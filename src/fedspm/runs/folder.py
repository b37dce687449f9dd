"""The run folder: config.toml, manifest.json, metrics.jsonl, checkpoints/round-NNNNN/, report.html.

Everything is written atomically, tensors as safetensors and the rest as text; nothing is ever unpickled.
"""

import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors.torch import save
from torch import Tensor, nn

from fedspm.algorithms import algorithm_named
from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.base.files import explained, is_partial, read_json, remove_partial, sha256, write_atomically
from fedspm.base.plugins import require_allowed
from fedspm.base.tensors import Tensors, plain
from fedspm.data.federation import Federation
from fedspm.data.settings import IN_MEMORY, OWN
from fedspm.federated.algorithm import Algorithm, Task
from fedspm.federated.evaluation import Model
from fedspm.mixture.semiparametric import require_semiparametric
from fedspm.runs.checkpoints import (
    FOLDER,
    Checkpoint,
    checkpoint_folders,
    newest_checkpoint,
    read_tensors,
    round_of,
    write_checkpoint,
)
from fedspm.runs.config import Config, load_config, recorded
from fedspm.runs.manifest import ELSEWHERE, manifest

RELEASES = "releases.json"
LOCK = ".lock"
SKETCH = "sketch.safetensors"
SETTINGS_DIGEST = "config_sha256"  # in the manifest: of the settings in config.toml, wherever the data lies
GIVEN = "given"  # encoder of a model whose network was given from Python


class Run:
    """A run folder that exists. Encoders from outside this package are built only if `allowed` has their names."""

    def __init__(self, path: Path, allowed: Collection[str] = ()):
        self.path = path
        self.allowed = frozenset([allowed] if isinstance(allowed, str) else allowed)

    # -- making and opening ------------------------------------------------------------------------------------------

    @classmethod
    def begin(cls, path: Path, config: Config, command: str) -> tuple["Run", Federation]:
        """A new run, with the data it trains on; whatever is wrong with either is said before the folder is made."""
        refuse_existing(path, config)
        federation = config.federation()
        if not any(map(len, federation.test or ())):
            raise FedSPMError("no client has a row to evaluate on; set a larger data.test_fraction, or bring test rows")
        algorithm = algorithm_named(config.algorithm)(config, task_of(federation))
        if config.variant != "1x" and not algorithm.variants:
            raise FedSPMError(f"variant = {config.variant}: {config.algorithm} has no variants; leave it out")
        if config.diagnose_every:
            require_semiparametric(algorithm)
        return cls.create(path, config, manifest(federation, algorithm, command)), federation

    def go_on(self) -> tuple["Checkpoint | None", Federation]:
        """Where a stopped or killed run goes on, and its data; None if it was killed before its first checkpoint."""
        self.sweep()
        for sentence in self.changes():
            warnings.warn(sentence, stacklevel=2)
        self.metrics()  # damage is better found now than at the next evaluation
        return (self.latest() if self.has_checkpoint() else None), self.federation()

    def prolong(self, rounds: int, command: str) -> None:
        """More rounds of the same schedule: the run goes on where it ended, as if it had been meant to all along, but
        that the evaluation of its old end stays among the metrics."""
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

    @contextmanager
    def locked(self, patient: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Nobody else trains in this folder meanwhile; the system frees the lock when a process dies.

        While `patient` says so, it waits for whoever holds the lock.
        """
        lock = FileLock(self.path / LOCK)
        with explained(self.path / LOCK):
            while not lock.is_locked:
                try:
                    lock.acquire(timeout=0.5 if patient() else 0)
                except Timeout as error:
                    if not patient():
                        raise FedSPMError(
                            f"another process is training in {self.path}; wait for it, or stop it first"
                        ) from error
        try:
            yield
        finally:
            lock.release()

    @classmethod
    def create(cls, path: Path, config: Config, manifest: Mapping[str, Any]) -> "Run":
        refuse_existing(path, config)
        with explained(path):
            path.mkdir(parents=True, exist_ok=True)
        run = cls(path, config.encoders)  # which the user has named just now
        run.sweep()
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
        """The manifest, with the digest of the settings as they are now. Across sites the folder comes first; who takes
        part is known when they have come."""
        content = {**manifest, SETTINGS_DIGEST: self._settings_digest()}
        write_atomically(self.path / "manifest.json", json.dumps(content, indent=2, ensure_ascii=False))

    def changes(self) -> list[str]:
        """What is not as it was when the run was made or last prolonged, one sentence each. None for a run whose
        manifest does not say how it was."""
        known = self.manifest
        digest, version = known.get(SETTINGS_DIGEST), known.get("versions", {}).get("torch")
        found = []
        if digest not in (None, self._settings_digest()):
            found.append(
                f"the settings in {self.path / 'config.toml'} were changed since the run was made: rounds from here on "
                "are trained with other settings than those before"
            )
        if version not in (None, torch.__version__):
            found.append(
                f"{self.path} was begun with torch {version}, and this is torch {torch.__version__}: the result will "
                "not be the same to the bit as without the stop"
            )
        return found

    def _settings_digest(self) -> str:
        """Of what config.toml says; that of data.path is left out, for data may be moved and has a fingerprint."""
        said = self._said()
        data = {key: value for key, value in said.get("data", {}).items() if key != "path"}
        return sha256(json.dumps(said | {"data": data}, sort_keys=True, default=str).encode())

    def _said(self) -> dict[str, Any]:
        said = load_config(path := self.path / "config.toml")
        if not said:
            raise DamagedFile(
                f"{path} is empty; put the settings of this run back, which its report.html shows as well"
            )
        return said

    @property
    def config(self) -> Config:
        return recorded(self._said())

    @property
    def manifest(self) -> dict[str, Any]:
        content: dict[str, Any] = read_json(self.path / "manifest.json")
        lists = ("clients", "counts", "classes", "shape")
        kinds = dict.fromkeys(lists, list) | {"data_fingerprint": str, "encoders": dict}
        if not isinstance(content, dict) or not all(isinstance(content.get(key), kinds[key]) for key in kinds):
            raise DamagedFile(f"{self.path / 'manifest.json'} is damaged at one of {', '.join(kinds)}")
        return content

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
        known = self.manifest
        return Task(tuple(known["shape"]), len(known["classes"]), tuple(known["clients"]), tuple(known["counts"]))

    @property
    def classes(self) -> np.ndarray:
        return np.asarray(self.manifest["classes"])

    def algorithm(self, networks: Mapping[str, nn.Module] | None = None) -> Algorithm:
        """The algorithm of this run. Networks that were given from Python have to be given again: they are code."""
        self.require_allowed(networks or {})
        config = self.config
        return algorithm_named(config.algorithm)(config, self.task, networks)

    def require_allowed(self, networks: Collection[str] = ()) -> None:
        """Refuse encoders that only this folder names, for roles without a network: it may come from anybody."""
        for role, source in zip(("predictor", "router"), self.config.encoders, strict=True):
            if role in networks:
                continue
            if source == GIVEN:
                raise FedSPMError(
                    f"{self.path} was trained with a {role} network of your own; give it again: {role}=network"
                )
            require_allowed(source, self.allowed)

    def model(self, networks: Mapping[str, nn.Module] | None = None) -> Model:
        """The newest checkpoint, ready to route and predict."""
        algorithm = self.algorithm(networks)
        checkpoint = self.latest()
        algorithm.require_fit(checkpoint.shared)
        if not checkpoint.privates:
            raise FedSPMError(f"{self.path} was trained across sites: what is needed to predict stayed with them")
        return Model(algorithm, checkpoint.shared, [checkpoint.privates[name] for name in self.task.names])

    # -- metrics -----------------------------------------------------------------------------------------------------

    def metrics(self) -> list[dict[str, Any]]:
        """What was evaluated, one line per round."""
        known_here = set() if self.across_sites else {"system_accuracy", "average_accuracy"}
        return self._lines("metrics.jsonl", {"clients", "seconds"} | known_here)

    def diagnostics(self) -> list[dict[str, Any]]:
        """What `diagnose_every` measured, one line per round."""
        return self._lines("diagnostics.jsonl")

    def releases(self) -> dict[str, int]:
        """How many noised vectors each site was asked for, written before it was: more than the checkpoint knows of."""
        path = self.path / RELEASES
        found = read_json(path) if path.exists() else {}
        if not isinstance(found, dict) or not all(type(count) is int for count in found.values()):
            raise DamagedFile(f"{path} is damaged: it should hold a whole number for each site")
        return found

    def keep_releases(self, counts: Mapping[str, int]) -> None:
        write_atomically(self.path / RELEASES, json.dumps(counts, ensure_ascii=False))

    def _lines(self, file: str, needed: Set[str] = frozenset()) -> list[dict[str, Any]]:
        path = self.path / file
        if not path.exists():
            return []
        lines = []
        for number, text in enumerate(path.read_bytes().splitlines(), 1):
            try:
                line = json.loads(text)
                line["round"] + 0
                if not needed <= line.keys():
                    raise KeyError(needed)
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedFile(f"{path} is damaged in line {number}; delete that line and those after it") from error
            lines.append(line)
        return lines

    def last_metrics(self) -> dict[str, Any]:
        metrics = self.metrics()
        if not metrics:
            how = f"`fedspm resume {quote(str(self.path))}` trains on"
            if self.config.data.name == IN_MEMORY:
                how = "use FederatedClassifier.load(path).evaluate(federation)"
            raise FedSPMError(f"{self.path} has no metrics; {how}")
        return metrics[-1]

    def record(self, line: Mapping[str, Any], file: str = "metrics.jsonl") -> None:
        """Add the line of a round; lines of that round and later ones, left by a crash, are replaced."""
        kept = [earlier for earlier in self._lines(file) if earlier["round"] < line["round"]]
        lines = [json.dumps(each, ensure_ascii=False) for each in (*kept, line)]
        write_atomically(self.path / file, "\n".join(lines) + "\n")

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
        write_checkpoint(self.path, checkpoint, keep)

    def latest(self) -> Checkpoint:
        return newest_checkpoint(self.path, self.task.names, across_sites=self.across_sites)

    def has_checkpoint(self) -> bool:
        return bool(checkpoint_folders(self.path))

    def last_round(self) -> int | None:
        """The round of the newest checkpoint."""
        return round_of(checkpoint_folders(self.path)[-1]) if self.has_checkpoint() else None

    # -- the sketch of the baseline ----------------------------------------------------------------------------------

    def keep_sketch(self, sketch: Mapping[str, Tensor]) -> None:
        write_atomically(self.path / SKETCH, save(plain(sketch)), private=True)

    def has_sketch(self) -> bool:
        return (self.path / SKETCH).exists()

    def sketch(self) -> Tensors:
        if not self.has_sketch():
            how = f"training writes it at its end, for an older run `fedspm resume {quote(str(self.path))}` does"
            if self.config.data.name == IN_MEMORY:
                how = "FederatedClassifier writes none; train with `fedspm train --data PATH` on the same rows in files"
            raise FedSPMError(f"{self.path} has no sketch of the baseline; {how}")
        return read_tensors(self.path / SKETCH)

    def sweep(self) -> None:
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
        federation = self.config.federation(again=True)
        require_same(self, federation)
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


def require_same(run: Run, federation: Federation) -> None:
    """Refuse rows that are not those that the run was trained on."""
    known = run.manifest["data_fingerprint"]
    if federation.fingerprint != known:
        raise FedSPMError(
            f"the data of {run.path} has changed since the run began (fingerprint {federation.fingerprint}, "
            f"then {known}); point data.path in its config.toml to the original"
        )


def refuse_existing(path: Path, config: Config | None = None) -> None:
    """Refuse a folder with anything in it. One in which a run with this very `config` was killed before it began has
    only its config.toml, which will be the same again, and is taken up."""
    if not path.exists():
        return
    found = (
        [each for each in path.iterdir() if each.name != LOCK and not is_partial(each.name)]
        if path.is_dir()
        else [path]
    )
    begun = config and found == [path / "config.toml"] and found[0].read_bytes() == config.to_toml().encode()
    if found and not begun:
        hint = f", or go on with it: `fedspm resume {quote(str(path))}`" if (path / "manifest.json").exists() else ""
        raise FedSPMError(f"{path} already exists and is not touched; choose another folder{hint}")


def task_of(federation: Federation) -> Task:
    return Task(federation.shape, len(federation.classes), federation.names, federation.counts)


def load_run(path: str | os.PathLike[str], *, allow: Collection[str] = ()) -> Run:
    """Open a run folder. `allow` names encoders from outside this package that may run their code."""
    return Run.open(Path(path), allow)
