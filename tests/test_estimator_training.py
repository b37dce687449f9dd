"""FederatedClassifier.fit: history, progress, callbacks, early stopping and ε, all from the one training loop."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone

from fedspm import FederatedClassifier, Federation
from fedspm.algorithms import ALGORITHMS
from fedspm.data.part import Part
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.training.callbacks import Callback, EarlyStopping
from fedspm.training.loop import train
from small import StopAfter

BLOCK = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 2}
SETTINGS = {f"{role}.{key}": value for role in ("predictor", "router") for key, value in BLOCK.items()} | {"em.hold": 1}


def small(**changes):
    more = changes.pop("settings", {})
    return FederatedClassifier(
        **{"components": 2, "rounds": 4, "workers": 1, "eval_every": 2, "settings": SETTINGS | more, **changes}
    )


def same(one, other):
    pairs = zip((one.shared, *one.privates), (other.shared, *other.privates), strict=True)
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs)


def without_time(lines):
    return [{key: value for key, value in line.items() if not key.startswith("seconds")} for line in lines]


def test_history_is_what_a_run_of_the_same_settings_writes(vectors, tmp_path):
    (tmp_path / "data").mkdir()
    for name, train_part, test_part in zip(vectors.names, vectors.train, vectors.test, strict=True):
        labels = {"y": vectors.classes[train_part.y], "y_test": vectors.classes[test_part.y]}
        np.savez(tmp_path / "data" / f"{name}.npz", x=train_part.x, x_test=test_part.x, **labels)
    blocks = {"predictor": BLOCK, "router": BLOCK, "em": {"hold": 1}}
    plain = {"components": 2, "rounds": 4, "workers": 1, "eval_every": 2}
    config = resolve({**plain, **blocks, "data": {"name": str(tmp_path / "data")}})
    run, federation = Run.begin(tmp_path / "run", config, "test")
    train(config, run.algorithm(), federation, run=run)
    model = small().fit(federation)
    assert [line["round"] for line in model.history_] == [2, 4]
    assert without_time(model.history_) == without_time(run.metrics())
    assert same(model.model_, run.model())
    assert all(torch.equal(model.sketch_[name], value) for name, value in run.sketch().items())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_evaluations_change_no_bit_of_the_model(vectors, algorithm):
    untested = Federation(vectors.names, vectors.classes, vectors.train)
    often, never = small(algorithm=algorithm, eval_every=1), small(algorithm=algorithm, eval_every=99)
    assert same(often.fit(vectors).model_, never.fit(untested).model_)


def test_without_test_rows_history_has_what_it_took(vectors):
    model = small().fit(Federation(vectors.names, vectors.classes, vectors.train))
    assert [line["round"] for line in model.history_] == [2, 4]
    assert {"seconds", "bytes_up"} <= model.history_[-1].keys()
    assert not {"system_accuracy", "clients", "validation"} & model.history_[-1].keys()


def test_nothing_is_printed_unless_asked_for(vectors, capfd):
    small().fit(vectors)
    assert capfd.readouterr() == ("", "")
    small(verbose=1).fit(vectors)
    shown = capfd.readouterr().out
    assert "round 2/4   system 0." in shown
    assert "training" in shown
    assert "4/4" in shown
    assert "left" in shown


def test_a_callback_of_ones_own_can_stop(vectors):
    class Rounds(Callback):
        seen = ()

        def on_round_end(self, training):
            self.seen = (*self.seen, training.round)

    mine = Rounds()
    model = small(callbacks=[mine, StopAfter(3)]).fit(vectors)
    assert mine.seen == (1, 2, 3)
    assert model.rounds_done_ == 3
    assert same(model.model_, small(rounds=3, horizon=4).fit(vectors).model_)
    assert model.sketch_ is not None  # nobody goes on with it, so its end is here


@pytest.mark.parametrize("algorithm", ["fedavg-ft", "fedbabu", "ditto"])
def test_a_model_that_was_stopped_is_as_personal_as_one_that_ended(vectors, algorithm):
    early = small(algorithm=algorithm, callbacks=[StopAfter(3)]).fit(vectors)
    assert same(early.model_, small(algorithm=algorithm, rounds=3, horizon=4).fit(vectors).model_)


class Impatient(EarlyStopping):
    """For which nothing is ever better than the first."""

    def _monitored(self, training, metrics):
        super()._monitored(training, metrics)
        return -float(metrics["round"])


def test_early_stopping_stops_and_keeps_the_best(vectors):
    model = small(rounds=8, eval_every=1, early_stopping=Impatient(patience=2), validation_fraction=0.2).fit(vectors)
    assert [line["round"] for line in model.history_] == [1, 2, 3]
    assert model.rounds_done_ == 1
    assert sum(model.manifest_["counts"]) < sum(vectors.counts)
    assert model.predict(vectors.test[0].x).shape == (60,)
    assert set(model.history_[0]["validation"]["clients"]) == set(vectors.names)


def test_early_stopping_never_sees_test_rows(vectors):
    """Whatever they are, the same rounds are done and the same model is kept."""
    nonsense = tuple(Part(part.x.flip(0) * 3, 1 - part.y) for part in vectors.test)
    others = Federation(vectors.names, vectors.classes, vectors.train, nonsense)
    untested = Federation(vectors.names, vectors.classes, vectors.train)
    early = EarlyStopping(patience=1)
    models = [small(rounds=6, eval_every=1, early_stopping=early).fit(each) for each in (vectors, others, untested)]
    for model in models[1:]:
        assert same(model.model_, models[0].model_)
        assert model.rounds_done_ == models[0].rounds_done_
        validated = [[line["validation"] for line in each.history_] for each in (model, models[0])]
        assert validated[0] == validated[1]
    assert models[0].history_[0]["system_accuracy"] != models[1].history_[0]["system_accuracy"]


def test_why_it_stopped_is_shown(vectors, capfd):
    early = Impatient(patience=1)
    small(rounds=8, eval_every=1, early_stopping=early, verbose=1).fit(vectors)
    shown = " ".join(capfd.readouterr().out.split())
    assert "validation system" in shown
    assert "stopped after round 2: average_accuracy on the validation rows was best after round 1" in shown


@pytest.mark.parametrize("early", [True, EarlyStopping(patience=2, monitor="system_accuracy")])
def test_conventions_hold_with_all_parameters(vectors, tmp_path, early):
    model = small(early_stopping=early, validation_fraction=0.25, callbacks=[StopAfter(2)], verbose=0)
    copied = clone(model)
    assert copied.get_params()["early_stopping"] == early
    assert copied.get_params()["validation_fraction"] == 0.25
    model.fit(vectors)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same(again.model_, model.model_)
    model.save(tmp_path / "model")
    loaded = FederatedClassifier.load(tmp_path / "model")
    for name in ("early_stopping", "validation_fraction", "eval_every", "rounds", "verbose"):
        assert loaded.get_params()[name] == model.get_params()[name]
    assert loaded.callbacks is None
    assert loaded.history_ == []


def test_privacy_is_reported(vectors, tmp_path):
    pytest.importorskip("opacus", reason="pip install 'fedspm[privacy]'")
    model = small(settings={"privacy.clip": 1.0, "privacy.noise": 2.0}).fit(vectors)
    spent = [line["privacy"]["epsilon"] for line in model.history_]
    assert 0 < spent[0] < spent[1] == model.privacy_["epsilon"]
    assert model.sketch_ is None  # no ε would cover it
    model.save(tmp_path / "model")
    assert FederatedClassifier.load(tmp_path / "model").privacy_ == model.privacy_
    assert small(rounds=1).fit(vectors).privacy_ is None


def test_rounds_after_the_best_one_cost_privacy_too(vectors):
    pytest.importorskip("opacus", reason="pip install 'fedspm[privacy]'")
    settings = {"privacy.clip": 1.0, "privacy.noise": 2.0}
    model = small(rounds=5, eval_every=1, early_stopping=Impatient(patience=2), settings=settings).fit(vectors)
    assert model.rounds_done_ == 1
    assert model.privacy_ == model.history_[-1]["privacy"]
    assert model.privacy_["epsilon"] > model.history_[0]["privacy"]["epsilon"]
