"""FederatedClassifier: the whole system behind scikit-learn's interface."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.base.files import folder_atomically
from fedspm.base.layers import dotted
from fedspm.base.tensors import Tensors
from fedspm.data.arrays import encoded_rows
from fedspm.data.federation import Federation
from fedspm.data.settings import IN_MEMORY
from fedspm.estimator.rows import (
    federation_of,
    is_table,
    require_comparable,
    require_federation,
    site_names,
    validated,
    with_weights,
)
from fedspm.federated.evaluation import Model, evaluate, require_finite_answers
from fedspm.federated.task import Task
from fedspm.nn.sgd import CHUNK, chunks
from fedspm.runs.checkpoints import Checkpoint
from fedspm.runs.config import Config, own_settings, resolve
from fedspm.runs.folder import GIVEN, Run
from fedspm.runs.manifest import manifest
from fedspm.training.callbacks import Callback, EarlyStopping, Progress
from fedspm.training.loop import train
from fedspm.training.validation import hold_out


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Train clients together without pooling their data, route a query to the best client, predict there.

    Parameters
    ----------
    algorithm : name of the method, "fedspm" by default
    components : C, hidden subgroups of each client
    rounds, horizon : rounds to train, and length of the annealing schedule (the rounds if None)
    variant : "1x", components share their encoders, or "cx", one encoder each
    preset : "default", measured best, or "paper", as printed
    predictor, router : encoders: a name, "package.module:factory", or any nn.Module with a fixed output size
    workers, device : "auto" uses all cores, and a GPU if there is one
    seed : everything random is derived from it
    settings : any other configuration, by dotted key: {"router.steps": 20, "predictor.learning_rate": 0.02}
    eval_every : rounds between evaluations on the federation's test rows, where it has any; see `history_`
    class_weight : None, "balanced" (inverse to a class's share of all training rows), or a dict; like `sample_weight`
        of `fit` it weighs rows in the supervised loss, and nowhere else: docs/sklearn.md
    early_stopping : True, or an `EarlyStopping(…)`: stop when the model no longer improves on validation rows, and keep
        the one that was best on them
    validation_fraction : share of every client's training rows that early stopping holds out, and nothing else does
    callbacks : what else is done around the rounds: docs/callbacks.md
    verbose : 1 shows a progress bar with the time left and a line for every evaluation; 0 prints nothing

    x is standardised by the mean and standard deviation of every channel (images) or feature (vectors) over the
    training rows of all clients with at least `min_count` of them; they are `model.mean_` and `model.scale_`.

    After `fit`, `history_` has one dict per evaluation, as metrics.jsonl of a run: what `evaluate` returns, where there
    are test rows, under "validation" the same on validation rows, and time, bytes and privacy. The model is that after
    round `rounds_done_`. `privacy_` is the (ε, δ) of what left the clients in all rounds, with what it does not cover;
    None where nothing was clipped (`settings={"privacy.clip": …}`).
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
        eval_every: int = 10,
        class_weight: str | Mapping[Any, float] | None = None,
        early_stopping: bool | EarlyStopping = False,
        validation_fraction: float = 0.1,
        callbacks: Sequence[Callback] | None = None,
        verbose: int = 0,
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
        self.eval_every = eval_every
        self.class_weight = class_weight
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.callbacks = callbacks
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, sites: Any = None, sample_weight: Any = None) -> "FederatedClassifier":
        """Train on a `Federation`, which has its labels with it, or on rows X and labels y with the site of every row;
        without `sites` all rows are one site's. `sample_weight` has one number per row of X."""
        config = self._config()
        if isinstance(X, Federation):
            if any(given is not None for given in (y, sites, sample_weight)):
                raise FedSPMError("a Federation has its labels and sites with it; y, sites and sample_weight are for X")
            federation = X.checked()
        else:
            federation = federation_of(self, X, y, sites)
        federation = with_weights(federation, sites, sample_weight, self.class_weight)
        callbacks = [*([Progress()] if self.verbose else []), *(self.callbacks or ())]
        rows, validation, more = federation, None, {}
        if self.early_stopping:
            stopping = EarlyStopping() if self.early_stopping is True else self.early_stopping
            callbacks.append(stopping)
            rows, validation = hold_out(federation, self.validation_fraction, config.seed)
            more["early_stopping"] = stopping.to_dict() | {"validation_fraction": self.validation_fraction}
        algorithm = build_algorithm(config, Task.of_federation(rows), self._networks())
        training = train(config, algorithm, rows, validation=validation, callbacks=callbacks)
        if privacy := training.privacy():
            more["privacy"] = privacy
        about = manifest(federation, algorithm, "FederatedClassifier.fit") | more
        self.history_ = training.history
        self.sketch_ = vars(training.sketch) if training.sketch else None
        return self._fitted(training.model(), config, about, training.round)

    def _fitted(self, model: Model, config: Config, manifest: dict[str, Any], done: int) -> "FederatedClassifier":
        self.model_ = model
        self.rounds_done_ = done
        self.privacy_ = manifest.get("privacy")
        self.config_ = config
        self.manifest_ = manifest
        self.classes_ = np.asarray(manifest["classes"])
        self.client_names_ = list(model.algorithm.task.names)
        self.mean_ = model.shared["input.mean"].numpy(force=True)
        self.scale_ = model.shared["input.scale"].numpy(force=True)
        self.n_features_in_ = int(np.prod(model.algorithm.task.shape))
        self.schema_ = model.algorithm.task.schema
        if self.schema_:
            self.n_features_in_ = len(self.schema_.columns)
            self.feature_names_in_ = np.asarray(self.schema_.names, dtype=object)
        return self

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

    def route(self, X: Any) -> np.ndarray:
        """(n, m): P(client | x), columns in the order of the federation's names."""
        check_is_fitted(self)
        if not self.model_.algorithm.routes:
            raise FedSPMError(f"{self.algorithm} cannot route; only methods with a model of x can")
        return self._collect(X, self.model_.posterior)

    def predict_proba(self, X: Any, client: str | None = None, sites: Any = None) -> np.ndarray:
        """(n, K): class probabilities of the client each row is routed to, of the client that is named, or of every
        row's own, where `sites` says whose it is.

        A method that cannot route averages the probabilities of all clients, each with the same weight.
        """
        check_is_fitted(self)
        if sites is not None:
            if client is not None:
                raise FedSPMError("give either client, one for all rows, or sites, one per row")
            home = iter(torch.from_numpy(site_names(sites, len(X), self.client_names_)).split(CHUNK))
            return self._collect(X, lambda embedding: self.model_.routed(next(home), embedding))
        if client is None:
            return self._collect(X, self.model_.probabilities)
        if str(client) not in self.client_names_:
            raise FedSPMError(f"there is no client {client!r}; known are {', '.join(self.client_names_)}")
        index = self.client_names_.index(str(client))
        return self._collect(X, lambda embedding: self.model_.local(index, embedding))

    def predict(self, X: Any, client: str | None = None, sites: Any = None) -> np.ndarray:
        """(n,): the labels that are likeliest by `predict_proba`."""
        probabilities = self.predict_proba(X, client, sites)
        labels: np.ndarray = self.classes_[probabilities.argmax(1)]
        return labels

    def score(self, X: Any, y: Any, client: str | None = None, sites: Any = None, sample_weight: Any = None) -> float:
        """Accuracy of `predict` on X and y; of a method that cannot route not the `system_accuracy` of `evaluate`,
        which counts a majority vote."""
        predicted = self.predict(X, client, sites)
        labels = np.asarray(y)
        require_comparable(labels, predicted)
        return float(accuracy_score(labels, predicted, sample_weight=sample_weight))

    def evaluate(self, federation: Federation) -> dict[str, Any]:
        """System, average and routing accuracy, and more, on the federation's test rows.

        As in the tables: a method that cannot route answers a system query by majority vote, one vote per client.
        """
        check_is_fitted(self)
        require_federation(federation)
        names = list(federation.names)
        if names != self.client_names_:
            raise FedSPMError(f"the model knows the clients {self.client_names_}, this federation has {names}")
        if self.schema_:
            federation = federation.arranged(self.schema_)
        if federation.shape != self.model_.algorithm.task.shape:
            raise FedSPMError(
                f"rows have shape {federation.shape}, the model was trained on {self.model_.algorithm.task.shape}"
            )
        if not np.array_equal(federation.classes, self.classes_):
            raise FedSPMError("the classes of this federation differ from those the model was trained on")
        return evaluate(self.model_, federation, full=True)

    def _collect(self, x: Any, function: Callable[[Tensors], Any]) -> np.ndarray:
        """What a function makes of all rows."""
        shape = self.model_.algorithm.task.shape
        if self.schema_ and not is_table(x):
            self.schema_.require_arrays("x")
        if len(shape) == 1 and not is_table(x) and not isinstance(x, torch.Tensor):
            x = validated(self, x, reset=False, dtype="numeric", ensure_all_finite=False)
        rows = encoded_rows(x, self.schema_, shape)
        with torch.no_grad():
            found = torch.cat([function(self.model_.embed(chunk)) for chunk in chunks(rows)])
        require_finite_answers(found, "a probability")
        return found.numpy(force=True)

    def save(self, path: str | Path) -> None:
        """Write a folder of safetensors, JSON and TOML, of the same form as a run; `fedspm onboard --sketch` takes it
        where the method has density ratios and no noise was added."""
        check_is_fitted(self)
        if Path(path).is_file() or (Path(path).is_dir() and any(Path(path).iterdir())):
            raise FedSPMError(f"{path} already exists and is not touched; choose another folder, or delete it")
        model = self.model_
        privates = dict(zip(self.client_names_, model.privates, strict=True))
        with folder_atomically(Path(path)) as temporary:
            run = Run.create(temporary, self.config_, self.manifest_)
            kinds = model.algorithm.kinds(model.shared)
            run.save(Checkpoint(self.rounds_done_, 0.0, model.shared, privates, {}, **kinds), keep=1)
            if self.sketch_:
                run.save_sketch(self.sketch_)

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
        that the folder names as "package.module:factory" is imported only if `allow` has that name. `history_` is then
        empty; the metrics of a run are `load_run(path).metrics()`."""
        run = Run.open(Path(path), allow)
        networks = {role: network for role, network in (("predictor", predictor), ("router", router)) if network}
        config = run.config
        plain = {name: getattr(config, name) for name in PLAIN}
        others: dict[str, Any] = {
            role: networks.get(role, getattr(config, role).encoder) for role in ("predictor", "router")
        }
        about = run.manifest
        if stopping := about.get("early_stopping"):
            others |= {
                "early_stopping": EarlyStopping.of(stopping),
                "validation_fraction": stopping["validation_fraction"],
            }
        if config.privacy.clip is not None and "privacy" not in about and (metrics := run.metrics()):
            about["privacy"] = metrics[-1]["privacy"]
        estimator = cls(**plain, **others, settings=own_settings(config, {*OF_RUNS, *PLAIN, *ENCODERS}))
        estimator.history_ = []
        estimator.sketch_ = run.sketch() if run.has_sketch() else None
        return estimator._fitted(run.model(networks), config, about, run.last_round() or 0)


OF_RUNS = ("data", "shift", "sites", "engine", "diagnose_every", "keep_checkpoints", "tensorboard")
PLAIN = ("algorithm", "components", "rounds", "horizon", "variant", "preset", "workers", "device", "seed", "eval_every")
ENCODERS = ("predictor.encoder", "router.encoder")
