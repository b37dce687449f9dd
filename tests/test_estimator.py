"""FederatedClassifier: scikit-learn's conventions, and that it learns."""

import copy
import pickle

import numpy as np
import pytest
import torch
from pandas import DataFrame
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import nn

from fedspm import FederatedClassifier, Federation
from fedspm.algorithms import ALGORITHMS
from fedspm.base.errors import FedSPMError
from fedspm.data.part import Part
from fedspm.federated.sizes import learnt_parameters
from fedspm.runs.folder import Run
from fedspm.training.predict import replies
from small import toy_rows


@pytest.fixture(scope="module")
def model(vectors):
    settings = {"predictor.learning_rate": 0.05, "router.learning_rate": 0.05, "em.hold": 5}
    return FederatedClassifier(components=2, rounds=25, workers=1, settings=settings).fit(vectors)


def test_it_finds_the_components_routes_and_predicts(model, vectors):
    metrics = model.evaluate(vectors)
    assert metrics["routing_accuracy"] > 0.9
    assert metrics["average_accuracy"] > 0.8
    assert metrics["system_accuracy"] > 0.75
    assert set(metrics["clients"]) == {"north", "south", "west"}


def test_one_component_cannot_do_it(model, vectors):
    """With a linear encoder one component cannot follow a label rule that turns round between the components."""
    two = clone(model).set_params(predictor="test_estimator:linear").fit(vectors)
    one = clone(two).set_params(components=1).fit(vectors)
    assert two.evaluate(vectors)["average_accuracy"] > one.evaluate(vectors)["average_accuracy"] + 0.1


def test_answers_are_numpy_of_the_right_shape(model, vectors):
    x = vectors.test[0].x
    posterior, probabilities = model.route(x), model.predict_proba(x.numpy())
    assert posterior.shape == (60, 3)
    assert probabilities.shape == (60, 2)
    np.testing.assert_allclose(posterior.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert set(model.predict(x)) <= {"ill", "well"}
    at_home = model.predict(x, client="north")
    assert (at_home == model.classes_[model.predict_proba(x, client="north").argmax(1)]).all()
    y = vectors.classes[vectors.test[0].y]
    assert model.score(x, y) == (model.predict(x) == y).mean()


@pytest.mark.parametrize(("name", "options"), [("fedavg-ft", {"options.epochs": 20}), ("ditto", {})])
def test_a_method_that_cannot_route_averages_its_clients_probabilities(vectors, name, options):
    """Shares of votes of three clients would be multiples of a third; the tables go on counting votes."""
    settings = {"predictor.learning_rate": 0.05, **options}
    model = FederatedClassifier(name, rounds=10, workers=1, settings=settings).fit(vectors)
    x, y = (torch.cat([getattr(part, key) for part in vectors.test]).numpy() for key in "xy")
    each = np.stack([model.predict_proba(x, client=client) for client in model.client_names_])
    found = model.predict_proba(x)
    np.testing.assert_allclose(found, each.mean(0), rtol=1e-5)  # every client weighs the same, as in a vote
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(model.predict(x), model.classes_[found.argmax(1)])
    assert model.score(x, model.classes_[y]) == pytest.approx((found.argmax(1) == y).mean())
    votes = (each.argmax(2).sum(0) >= 2).astype(int)  # of two classes and three clients
    assert model.evaluate(vectors)["system_accuracy"] == pytest.approx((votes == y).mean())
    assert (votes != found.argmax(1)).any()  # else all of this would hold for votes as well


def test_the_statistics_it_standardises_by_are_those_of_all_training_rows(model, vectors):
    pooled = torch.cat([part.x for part in vectors.train]).double()
    np.testing.assert_allclose(model.mean_, pooled.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.scale_, pooled.std(0, correction=0), rtol=1e-4)


def test_saved_and_loaded_it_answers_the_same(model, vectors, tmp_path):
    model.save(tmp_path / "model")
    again = FederatedClassifier.load(tmp_path / "model")
    x = vectors.test[1].x
    np.testing.assert_array_equal(model.route(x), again.route(x))
    np.testing.assert_array_equal(model.predict_proba(x), again.predict_proba(x))
    assert again.get_params() == model.get_params()
    again.save(tmp_path / "again")
    with pytest.raises(FedSPMError, match="already exists"):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copied_or_pickled_it_answers_the_same(model, vectors, copied):
    again, x = copied(model), vectors.test[1].x
    np.testing.assert_array_equal(model.route(x), again.route(x))
    np.testing.assert_array_equal(model.predict_proba(x), again.predict_proba(x))
    assert again.evaluate(vectors) == model.evaluate(vectors)


@pytest.mark.parametrize(("known", "asked"), [([0, 1], ["0", "1"]), (["0", "1"], [0, 1])])
def test_labels_of_the_other_kind_are_not_scored(known, asked):
    x = np.random.default_rng(0).normal(size=(10, 2))
    model = FederatedClassifier("fedavg", rounds=1, workers=1)
    model.fit(Federation.from_arrays(dict.fromkeys("ab", (x, known * 5))))
    assert 0 <= model.score(x, known * 5) <= 1
    with pytest.raises(FedSPMError, match=r"y: labels are .*, the training labels are .*; use one kind"):
        model.score(x, asked * 5)


def test_scikit_learns_conventions(vectors):
    estimator = FederatedClassifier(components=2, rounds=1)
    assert estimator.get_params()["components"] == 2
    assert clone(estimator).set_params(rounds=2).rounds == 2
    for call in (estimator.predict, estimator.predict_proba, estimator.route):
        with pytest.raises(NotFittedError):
            call(np.zeros((1, 6)))
    assert estimator.fit(vectors) is estimator


def test_scales_of_features_do_not_matter(vectors):
    """Standardisation is part of the model; powers of two change no other bit."""
    scales = torch.tensor([2.0**20, 2.0**-20, 1.0, 2.0**7, 2.0**-3, 2.0**10])
    scaled = Federation(
        vectors.names, vectors.classes, tuple(Part(part.x * scales, part.y) for part in vectors.train), vectors.test
    )
    one, other = (
        FederatedClassifier(components=2, rounds=2, workers=1, settings={"em.hold": 1}).fit(f)
        for f in (vectors, scaled)
    )
    x = vectors.test[0].x
    np.testing.assert_array_equal(one.predict_proba(x), other.predict_proba(x * scales))
    np.testing.assert_array_equal(one.route(x), other.route(x * scales))


def test_bad_queries_get_a_sentence(model):
    for x, sentence in [
        (np.zeros((2, 5)), "expecting 6 features"),
        (torch.zeros(2, 5), "the model was trained on"),
        (np.full((2, 6), np.nan), "x: row 1"),
        (np.zeros(6), "Expected 2D array"),
    ]:
        with pytest.raises(FedSPMError, match=sentence):
            model.predict(x)
    with pytest.raises(FedSPMError, match="no client 'east'"):
        model.predict(np.zeros((1, 6)), client="east")
    with pytest.raises(FedSPMError, match="no algorithm 'fedfoo'"):
        FederatedClassifier("fedfoo").fit(Federation.from_arrays({c: (np.eye(4), [0, 1, 0, 1]) for c in "ab"}))


def test_a_network_of_your_own(vectors, tmp_path):
    own = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    for variant in ("1x", "cx"):
        model = FederatedClassifier(predictor=own, router=nn.Linear(6, 3), components=2, rounds=2, variant=variant)
        model.fit(vectors)
        assert model.model_.privates[0]["head.weight"].shape == (2, 2, 5)
        assert model.model_.shared["tilt.xi"].shape == (3, 2, 3)
    model.save(tmp_path / "own")
    with pytest.raises(FedSPMError, match="a predictor network of your own; give it again"):
        FederatedClassifier.load(tmp_path / "own")
    again = FederatedClassifier.load(tmp_path / "own", predictor=own, router=nn.Linear(6, 3))
    x = vectors.test[0].x
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))


def half_frozen():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    network[0].requires_grad_(False)
    return network


def moved(model):
    """Names of the predictor's parameters that training moved, in any of its copies."""
    start, states = model.model_.algorithm.predictor.initial(), (model.model_.shared, *model.model_.privates)
    found = {name for state in states for key, value in state.items()
             if (name := key.removeprefix("personal.")) in start and not torch.equal(value, start[name])}  # fmt: skip
    return {name.split(".", 2)[2] for name in found}


def heads(model):
    states = (model.model_.shared, *model.model_.privates)
    return torch.cat([value.flatten() for state in states for name, value in state.items() if "head." in name])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_frozen_parameters_of_a_network_stay(vectors, algorithm):
    network = half_frozen()
    model = FederatedClassifier(algorithm, predictor=network, components=2, rounds=2, workers=1).fit(vectors)
    assert moved(model) == {"2.weight", "2.bias"}
    for private in model.model_.privates:
        if "personal.predictor.0.0.weight" in private:
            assert torch.equal(private["personal.predictor.0.0.weight"], network[0].weight)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_of_a_network_that_is_all_frozen_only_heads_are_trained(vectors, algorithm):
    network = half_frozen().requires_grad_(False)
    model, idle = (
        FederatedClassifier(
            algorithm, predictor=network, components=2, rounds=2, workers=1, settings={"predictor.learning_rate": rate}
        ).fit(vectors)
        for rate in (0.1, 1e-9)
    )
    assert not moved(model)
    assert (heads(model) - heads(idle)).abs().max() > 0.01


@pytest.mark.parametrize("settings", [{"clients_at_once": 3}, {"privacy.clip": 1.0, "privacy.noise": 1.0}])
def test_frozen_parameters_stay_in_groups_and_under_noise(vectors, settings):
    model = FederatedClassifier(predictor=half_frozen(), components=2, rounds=2, workers=1, settings=settings)
    assert moved(model.fit(vectors)) == {"2.weight", "2.bias"}


def test_frozen_parameters_are_not_counted_as_learnt(vectors):
    counts = []
    for network in (half_frozen(), half_frozen().requires_grad_(True)):
        model = FederatedClassifier("fedavg", predictor=network, rounds=1, workers=1).fit(vectors).model_
        counts.append(learnt_parameters(model.algorithm, model.shared, model.privates[0])["shared"])
    assert counts[1] - counts[0] == 6 * 5 + 5


def test_an_encoder_from_an_import_path(vectors):
    model = FederatedClassifier(predictor="test_estimator:linear", components=2, rounds=1).fit(vectors)
    assert "predictor.0.weight" in model.model_.shared
    for wrong, sentence in [
        ("nothing", "is not known"),
        ("no_such:thing", "cannot be imported"),
        ("resnet", "takes images"),
    ]:
        with pytest.raises(FedSPMError, match=sentence):
            FederatedClassifier(predictor=wrong).fit(vectors)
    with pytest.raises(FedSPMError, match="does not take rows of shape"):
        FederatedClassifier(predictor=nn.Linear(5, 3)).fit(vectors)


def linear(shape, dimension):
    return nn.Linear(shape[0], dimension)


def test_how_clients_are_numbered_changes_nothing(vectors):
    backwards = Federation(vectors.names[::-1], vectors.classes, vectors.train[::-1], vectors.test[::-1])
    one, other = (
        FederatedClassifier(components=2, rounds=3, settings={"em.hold": 1}).fit(f) for f in (vectors, backwards)
    )
    x = vectors.test[0].x
    np.testing.assert_allclose(one.route(x), other.route(x)[:, ::-1], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(one.predict_proba(x), other.predict_proba(x), rtol=1e-3, atol=1e-4)
    for name in vectors.names:
        np.testing.assert_allclose(
            one.predict_proba(x, client=name), other.predict_proba(x, client=name), rtol=1e-3, atol=1e-4
        )


def test_clients_without_test_rows_are_fine(vectors):
    train = {name: (part.x, vectors.classes[part.y]) for name, part in zip(vectors.names, vectors.train, strict=True)}
    federation = Federation.from_arrays(train, test={"north": train["north"]})
    model = FederatedClassifier(components=2, rounds=1).fit(federation)
    assert set(model.evaluate(federation)["clients"]) == {"north"}
    with pytest.raises(FedSPMError, match="no test rows"):
        model.evaluate(Federation.from_arrays(train))


def test_settings_survive_saving(vectors, tmp_path):
    settings = {"min_count": 20, "options.mu": 0.5, "rounds": 2, "predictor.steps": 1, "em.hold": 1}
    model = FederatedClassifier("fedprox", settings=settings).fit(vectors)
    model.set_params(components=5)  # after the fit: what is saved is what was fitted
    model.save(tmp_path / "model")
    again = FederatedClassifier.load(tmp_path / "model")
    assert again.config_ == model.config_
    assert again.config_.min_count == 20
    assert clone(again).fit(vectors).config_ == model.config_


def test_long_vectors_are_projected_before_k_means():
    x = np.random.default_rng(0).normal(size=(60, 400)).astype(np.float32)
    federation = Federation.from_arrays({"a": (x[:30], np.arange(30) % 2), "b": (x[30:], np.arange(30) % 2)})
    assert FederatedClassifier(components=2, rounds=1).fit(federation).route(x).shape == (60, 2)


def test_dropout_is_warned_of(vectors):
    with pytest.warns(UserWarning, match="predictor encoder has dropout"):
        FederatedClassifier(predictor=nn.Sequential(nn.Linear(6, 4), nn.Dropout()), rounds=1, components=2).fit(vectors)


def test_devices_that_are_not_here(vectors):
    with pytest.raises(FedSPMError, match="device = 'warp' cannot be used here"):
        FederatedClassifier(device="warp", rounds=1).fit(vectors)


def test_columns_of_a_table_are_matched_by_name():
    names, turned = list("abcdef"), list("fedcba")
    data = {name: toy_rows(60, shift, False, seed) for seed, (name, shift) in enumerate((("one", 0.0), ("two", 2.0)))}
    arrays = FederatedClassifier(components=1, rounds=1).fit(Federation.from_arrays(data))
    one, two = ((DataFrame(x, columns=names), y) for x, y in data.values())
    mixed = {"one": one, "two": (two[0][turned], two[1])}
    model = FederatedClassifier(components=1, rounds=1).fit(Federation.from_arrays(mixed))
    x = data["two"][0][:9]
    expected = arrays.predict_proba(x)
    assert list(model.feature_names_in_) == names
    for asked in (x, DataFrame(x, columns=names), DataFrame(x, columns=names)[turned]):
        np.testing.assert_array_equal(model.predict_proba(asked), expected)
    with pytest.raises(FedSPMError, match="there is no column 'f'"):
        model.predict(DataFrame(x, columns=names)[names[:5]])
    as_trained = {name: (DataFrame(x, columns=names), y) for name, (x, y) in data.items()}
    backwards = {name: (table[turned], y) for name, (table, y) in as_trained.items()}
    renamed = {name: (DataFrame(x, columns=list("abcdeg")), y) for name, (x, y) in data.items()}
    found, same = (model.evaluate(Federation.from_arrays(each, each)) for each in (as_trained, backwards))
    assert found == same
    with pytest.raises(
        FedSPMError, match="there is no column 'f', on which the model was trained; there are a, b, c, d, e, g"
    ):
        model.evaluate(Federation.from_arrays(renamed, renamed))
    numbered = FederatedClassifier(components=1, rounds=1).fit(
        Federation.from_arrays({name: (DataFrame(x, columns=range(6)), y) for name, (x, y) in data.items()})
    )
    assert not hasattr(numbered, "feature_names_in_")


def test_a_row_that_is_too_far_from_all_is_named(pictured):
    model, _ = pictured
    x = torch.rand(4, 3, 8, 8)
    x[2] = 3e38
    for ask in (model.route, model.predict_proba, model.predict):
        with pytest.raises(FedSPMError, match="cannot be computed for row 3: values of x are too far"):
            ask(x)
    called = ["a.png", "b.npz, row 1", "b.npz, row 2", "b.npz, row 3"]
    with pytest.raises(FedSPMError, match=r"P\(client \| x\) cannot be computed for b.npz, row 2: values"):
        replies(model.model_, x, model.classes_, called)


@pytest.mark.parametrize("settings", [{1: 2}, "router.steps=3", [("router.steps", 3)]])
def test_settings_have_dotted_keys(vectors, settings):
    with pytest.raises(FedSPMError, match="settings must be a dict of dotted keys"):
        FederatedClassifier(rounds=1).set_params(settings=settings).fit(vectors)


@pytest.mark.parametrize("key", ["engine", "diagnose_every", "data.validation_fraction", "shift.colour", "tensorboard"])
def test_settings_that_only_a_run_uses_are_refused(vectors, key):
    with pytest.raises(FedSPMError, match=f"{key.split('.')[0]} is for runs with a folder"):
        FederatedClassifier(rounds=1, settings={key: 1}).fit(vectors)


def test_a_save_that_fails_leaves_nothing_behind(served, tmp_path, monkeypatch):
    def full(self, checkpoint, keep):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Run, "save", full)
        with pytest.raises(FedSPMError, match="no space left on the disk"):
            served[0].save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    served[0].save(tmp_path / "model")
    assert FederatedClassifier.load(tmp_path / "model").client_names_ == served[0].client_names_
