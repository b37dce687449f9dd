"""FederatedClassifier: the whole system behind scikit-learn's interface."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.base.files import folder_atomically
from fedspm.base.layers import dotted
from fedspm.base.schema import Strict
from fedspm.base.tensors import Tensors
from fedspm.data.arrays import as_input, as_labels, in_order, require_finite
from fedspm.data.federation import Federation
from fedspm.data.settings import IN_MEMORY
from fedspm.federated.evaluation import Model, evaluate, require_finite_answers
from fedspm.federated.task import Task
from fedspm.nn.sgd import chunks
from fedspm.runs.checkpoints import Checkpoint
from fedspm.runs.config import Config, resolve
from fedspm.runs.folder import GIVEN, Run
from fedspm.runs.manifest import manifest
from fedspm.training.loop import begin, in_process, one_round, personalised


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Train clients together without pooling their data, route a query to the best client, predict there.

    Parameters
    ----------
    algorithm : name of the method, "fedspm" by default
    components : C, hidden subgroups a client
    rounds, horizon : rounds to train, and length of the annealing schedule (the rounds if None)
    variant : "1x", components share their encoders, or "cx", one encoder each
    preset : "default", measured best, or "paper", as printed
    predictor, router : encoders: a name, "package.module:factory", or any nn.Module with a fixed output size
    workers, device : "auto" uses all cores, and a GPU if there is one
    seed : everything random is derived from it
    settings : any other configuration, by dotted key: {"router.steps": 20, "predictor.learning_rate": 0.02}

    x is standardised by the mean and standard deviation of every channel (images) or feature (vectors) over the
    training rows of all clients with at least `min_count` of them; they are `model.mean_` and `model.scale_`.
    """

    def __init__(
        self,
        algorithm: str = "fedspm",
        *,
        components: int = 3,
        rounds: int = 200,
        horizon: int | None = None,
        variant: str = "1x",
        preset: str = "default",
        predictor: str | nn.Module = "auto",
        router: str | nn.Module = "auto",
        workers: int | str = "auto",
        device: str = "auto",
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ):
        self.algorithm = algorithm
        self.components = components
        self.rounds = rounds
        self.horizon = horizon
        self.variant = variant
        self.preset = preset
        self.predictor = predictor
        self.router = router
        self.workers = workers
        self.device = device
        self.seed = seed
        self.settings = settings

    # -- training ----------------------------------------------------------------------------------------------------

    def fit(self, federation: Federation, y: object = None) -> "FederatedClassifier":
        """Train on the federation's training rows, which have their labels: there is no y beside them."""
        self._require_federation(federation)
        config = self._config()
        federation.checked()
        networks = self._networks()
        algorithm = build_algorithm(config, Task.of_federation(federation), networks)
        with in_process(config, federation) as engine:
            shared = begin(algorithm, engine)
            for number in range(config.rounds):
                shared = one_round(algorithm, engine, shared, number)
            model = personalised(algorithm, engine, shared)
        self._fitted(model, config, manifest(federation, algorithm, "FederatedClassifier.fit"), config.rounds)
        return self

    def _fitted(self, model: Model, config: Config, manifest: dict[str, Any], done: int) -> None:
        self.model_ = model
        self.rounds_done_ = done
        self.config_ = config
        self.manifest_ = manifest
        self.classes_ = np.asarray(manifest["classes"])
        self.client_names_ = list(model.algorithm.task.names)
        self.mean_ = model.shared["input.mean"].numpy(force=True)
        self.scale_ = model.shared["input.scale"].numpy(force=True)
        self.n_features_in_ = int(np.prod(model.algorithm.task.shape))
        if columns := manifest.get("columns"):
            self.feature_names_in_ = np.asarray(columns, dtype=object)

    def _require_federation(self, federation: object) -> None:
        if not isinstance(federation, Federation):
            raise FedSPMError(
                f"a Federation is needed, not {type(federation).__name__}; make one with "
                'Federation.from_arrays({"north": (x, y), "south": (x2, y2)})'
            )

    def _config(self) -> Config:
        networks = self._networks()
        flat = {name: getattr(self, name) for name in PLAIN if getattr(self, name) is not None}
        flat |= {
            f"{role}.encoder": GIVEN if role in networks else getattr(self, role) for role in ("predictor", "router")
        }
        said = self.settings or {}
        if not isinstance(said, Mapping) or not all(isinstance(key, str) for key in said):
            raise FedSPMError('settings must be a dict of dotted keys, for instance {"router.steps": 20}')
        wanted = dotted(said)
        if found := [key for key in wanted if key in OF_RUNS]:
            raise FedSPMError(f"{found[0]} is for runs with a folder or a data set of their own; leave it out here")
        return resolve({"data": {"name": IN_MEMORY}}, dotted(flat), wanted)

    def _networks(self) -> dict[str, nn.Module]:
        given = {"predictor": self.predictor, "router": self.router}
        return {role: network for role, network in given.items() if isinstance(network, nn.Module)}

    # -- inference ---------------------------------------------------------------------------------------------------

    def route(self, x: Any) -> np.ndarray:
        """(n, m): P(client | x), columns in the order of the federation's names."""
        check_is_fitted(self)
        if not self.model_.algorithm.routes:
            raise FedSPMError(f"{self.algorithm} cannot route; only methods with a model of x can")
        return self._collect(x, self.model_.posterior)

    def predict_proba(self, x: Any, client: str | None = None) -> np.ndarray:
        """(n, K): class probabilities of the client each row is routed to, or of the client that is named.

        A method that cannot route averages the probabilities of all clients, each with the same weight.
        """
        check_is_fitted(self)
        if client is None:
            return self._collect(x, self.model_.probabilities)
        if str(client) not in self.client_names_:
            raise FedSPMError(f"there is no client {client!r}; known are {', '.join(self.client_names_)}")
        index = self.client_names_.index(str(client))
        return self._collect(x, lambda embedding: self.model_.local(index, embedding))

    def predict(self, x: Any, client: str | None = None) -> np.ndarray:
        """(n,): the labels that are likeliest by `predict_proba`."""
        probabilities = self.predict_proba(x, client)
        labels: np.ndarray = self.classes_[probabilities.argmax(1)]
        return labels

    def score(self, x: Any, y: Any, client: str | None = None) -> float:
        """Accuracy of `predict` on x and y.

        For a method that cannot route it is not the `system_accuracy` of `evaluate`, which counts a majority vote.
        """
        labels = as_labels(y)
        predicted = self.predict(x, client)
        if labels.shape != predicted.shape:
            raise FedSPMError(f"y has shape {labels.shape}, x has {len(predicted)} rows; y needs one label a row")
        if not len(labels):
            raise FedSPMError("x has no rows to score")
        if (labels.dtype.kind == "U") != (predicted.dtype.kind == "U"):
            raise FedSPMError(f"y: labels are {labels.dtype}, the training labels are {predicted.dtype}; use one kind")
        return float((predicted == labels).mean())

    def evaluate(self, federation: Federation) -> dict[str, Any]:
        """System, average and routing accuracy, and more, on the federation's test rows.

        As in the tables: a method that cannot route answers a system query by majority vote, one vote per client.
        """
        check_is_fitted(self)
        self._require_federation(federation)
        names = list(federation.names)
        if names != self.client_names_:
            raise FedSPMError(f"the model knows the clients {self.client_names_}, this federation has {names}")
        if (columns := self.manifest_.get("columns")) and federation.columns:
            federation = federation.arranged(columns)
        if federation.shape != self.model_.algorithm.task.shape:
            raise FedSPMError(
                f"rows have shape {federation.shape}, the model was trained on {self.model_.algorithm.task.shape}"
            )
        if not np.array_equal(federation.classes, self.classes_):
            raise FedSPMError("the classes of this federation differ from those the model was trained on")
        return evaluate(self.model_, federation)

    def _collect(self, x: Any, function: Callable[[Tensors], Any]) -> np.ndarray:
        """What a function makes of all rows."""
        rows = as_input(in_order(x, self.manifest_.get("columns")), self.model_.algorithm.task.shape)
        require_finite(rows, "x")
        with torch.no_grad():
            found = torch.cat([function(self.model_.embed(chunk)) for chunk in chunks(rows)])
        require_finite_answers(found, "a probability")
        return found.numpy(force=True)

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a folder of safetensors, JSON and TOML, of the same form as a run."""
        check_is_fitted(self)
        if Path(path).is_file() or (Path(path).is_dir() and any(Path(path).iterdir())):
            raise FedSPMError(f"{path} already exists and is not touched; choose another folder, or delete it")
        model = self.model_
        privates = dict(zip(self.client_names_, model.privates, strict=True))
        with folder_atomically(Path(path)) as temporary:
            run = Run.create(temporary, self.config_, self.manifest_)
            run.save(Checkpoint(self.rounds_done_, 0.0, model.shared, privates), keep=1)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        predictor: nn.Module | None = None,
        router: nn.Module | None = None,
        allow: Collection[str] = (),
    ) -> "FederatedClassifier":
        """A model that was saved, or the newest checkpoint of a run. Networks of your own are given again; an encoder
        that the folder names as "package.module:factory" is imported only if `allow` has that name."""
        run = Run.open(Path(path), allow)
        networks = {role: network for role, network in (("predictor", predictor), ("router", router)) if network}
        config = run.config
        plain = {name: getattr(config, name) for name in PLAIN}
        others = {role: networks.get(role, getattr(config, role).encoder) for role in ("predictor", "router")}
        estimator = cls(**plain, **others, settings=_differences(config))
        estimator._fitted(run.model(networks), config, run.manifest, run.last_round() or 0)
        return estimator


def _differences(config: Config) -> dict[str, Any]:
    """What a configuration says beyond its preset and the parameters of the estimator, by dotted key."""
    usual = resolve({"preset": config.preset, "data": {"name": IN_MEMORY}})
    different: dict[str, Any] = {}
    for name, value in config:
        if name in OF_RUNS:
            continue
        if isinstance(value, Strict):
            pairs = [(f"{name}.{key}", inner, getattr(getattr(usual, name), key)) for key, inner in value]
        elif isinstance(value, dict):
            pairs = [(f"{name}.{key}", inner, None) for key, inner in value.items()]
        else:
            pairs = [(name, value, getattr(usual, name))]
        different |= {key: inner for key, inner, default in pairs if inner != default}
    given = {*PLAIN, "predictor.encoder", "router.encoder"}
    return {key: value for key, value in different.items() if key not in given}


OF_RUNS = ("data", "shift", "sites", "engine", "eval_every", "diagnose_every", "keep_checkpoints", "tensorboard")
PLAIN = ("algorithm", "components", "rounds", "horizon", "variant", "preset", "workers", "device", "seed")
