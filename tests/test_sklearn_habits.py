"""FederatedClassifier among scikit-learn's tools: X, y and sites, weights, pipelines, searches, metadata routing."""

import subprocess
import sys

import numpy as np
import pandas
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedspm import FederatedClassifier, Federation
from fedspm.base.errors import FedSPMError
from fedspm.estimator import SiteKFold, leave_one_site_out
from fedspm.federated.client import Client
from small import toy_rows

QUICK = {"rounds": 3, "workers": 1, "settings": {"predictor.steps": 3, "router.steps": 3, "em.hold": 1}}
EXPECTED_FAILURES = {  # docs/sklearn.md
    "check_sample_weight_equivalence_on_dense_data": "a row of weight 2 is not drawn twice into batches",
}


CHECKS = """
import warnings
from sklearn.utils.estimator_checks import check_estimator
from fedspm import FederatedClassifier
warnings.simplefilter("ignore")
settings = {"predictor.steps": 25, "router.steps": 2, "em.hold": 1}
model = FederatedClassifier(components=2, rounds=4, workers=1, settings=settings)
for result in check_estimator(model, on_skip=None, on_fail=None):
    if result["status"] == "failed":
        print(result["check_name"], repr(result["exception"]))
"""


def test_scikit_learns_own_checks():
    """In a process of its own: here argument types are checked, and one of the checks hands over nonsense."""
    done = subprocess.run([sys.executable, "-c", CHECKS], capture_output=True, text=True, check=True)
    failed = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert failed.keys() == EXPECTED_FAILURES.keys(), failed


@pytest.fixture(scope="module")
def rows():
    """X, y and sites in mixed order."""
    parts = [toy_rows(60, i / 2, bool(i), seed=i) for i in range(2)]
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    sites = np.repeat(["north", "south"], 60)
    order = np.random.default_rng(0).permutation(120)
    return x[order], y[order], sites[order]


def test_rows_with_sites_are_the_same_as_a_federation(rows):
    x, y, sites = rows
    model = FederatedClassifier(components=2, **QUICK)
    one = clone(model).fit(x, y, sites=sites)
    first = list(dict.fromkeys(sites.tolist()))
    other = clone(model).fit(Federation.from_arrays({name: (x[sites == name], y[sites == name]) for name in first}))
    np.testing.assert_array_equal(one.predict_proba(x), other.predict_proba(x))
    assert one.client_names_ == first
    at_home = np.where(sites == "north", one.predict(x, client="north"), one.predict(x, client="south"))
    np.testing.assert_array_equal(one.predict(x, sites=sites), at_home)
    assert one.score(x, y, sites=sites) == (at_home == y).mean()
    with pytest.raises(FedSPMError, match="no client 'east'"):
        one.predict(x, sites=["east"] * 120)
    with pytest.raises(FedSPMError, match="has its labels"):
        model.fit(Federation.from_arrays({name: (x[sites == name], y[sites == name]) for name in first}), y)
    with pytest.raises(FedSPMError, match="sites has 119 entries"):
        model.fit(x, y, sites=sites[1:])


@pytest.mark.parametrize("labels", [[0.5, 1.5], [False, True], [3.0, 7.0]])
def test_labels_may_be_what_scikit_learn_takes(rows, labels, tmp_path):
    x, y, _ = rows
    given = np.where(y == "ill", labels[0], labels[1])
    model = FederatedClassifier("fedavg", **QUICK)
    if labels[0] == 0.5:
        with pytest.raises(ValueError, match="Unknown label type: continuous"):
            model.fit(x, given)
        return
    predicted = model.fit(x, given).predict(x)
    assert predicted.dtype == given.dtype
    assert set(predicted) <= set(labels)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(FederatedClassifier.load(tmp_path / "model").predict(x), predicted)


def test_a_search_hands_the_sites_to_fit_and_score(rows):
    x, y, sites = rows
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedClassifier(components=2, **QUICK).set_fit_request(sites=True).set_score_request(sites=True)
        pipeline = make_pipeline(StandardScaler(), model)
        folds = SiteKFold(2)
        found = cross_val_score(pipeline, x, y, cv=folds, params={"sites": sites, "groups": sites})
        train, test = next(folds.split(x, y, sites))
        alone = clone(pipeline).fit(x[train], y[train], sites=sites[train])
        assert found[0] == alone.score(x[test], y[test], sites=sites[test])
        assert alone[-1].client_names_ == list(dict.fromkeys(sites[train].tolist()))
        search = GridSearchCV(model, {"components": [1, 2]}, cv=folds).fit(x, y, sites=sites, groups=sites)
    assert set(search.best_estimator_.client_names_) == {"north", "south"}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_folds_divide_every_site_and_class_alike(rows):
    x, y, sites = rows
    seen = []
    for train, test in SiteKFold(5, shuffle=True, random_state=3).split(x, y, sites):
        assert not set(train) & set(test)
        seen += test.tolist()
        for site in ("north", "south"):
            assert np.sum(sites[test] == site) == 12
            ill = np.mean(y[sites == site] == "ill")
            assert abs(np.sum((y[test] == "ill") & (sites[test] == site)) - 12 * ill) <= 1
    assert sorted(seen) == list(range(120))
    with pytest.raises(FedSPMError, match="fewer than the 5 folds"):
        list(SiteKFold(5).split(x[:8], y[:8], ["a"] * 6 + ["b"] * 2))


def test_a_site_that_never_took_part(vectors, rows):
    model = FederatedClassifier("fedavg", **QUICK)
    found = leave_one_site_out(model, vectors)
    assert found.keys() == set(vectors.names)
    name = vectors.names[0]
    fitted = clone(model).fit(vectors.without([name]))
    x, y = (torch.cat([getattr(part, key) for part in (vectors.train[0], vectors.test[0])]) for key in "xy")
    assert found[name]["rows"] == len(y)
    assert found[name]["system_accuracy"] == pytest.approx(fitted.score(x, vectors.classes[y]))
    x, y, sites = rows
    folds = cross_val_score(model, x, y, groups=sites, cv=LeaveOneGroupOut())  # one site: nobody is routed to
    assert len(folds) == 2


def test_the_predictor_descends_weighted_losses_and_the_router_does_not(rows):
    weight = torch.tensor([0.0, 2.0, 1.0])
    client = Client("a", 0, torch.zeros(3, 1), torch.zeros(3, dtype=torch.long), {}, 0, 0, weight=weight)
    (batch,) = client.batches("step", 3, 1)
    losses = torch.tensor([5.0, 3.0, 1.0])

    def objective(parameters, batch):
        return losses[batch.row]

    expected = losses[batch.row] * weight[batch.row]
    torch.testing.assert_close(client.weighted(objective, "predictor")({}, batch), expected)
    assert client.weighted(objective, "router") is objective


def test_weights_of_rows_and_of_classes(rows):
    x, y, sites = rows
    model = FederatedClassifier(components=2, **QUICK)
    plain = clone(model).fit(x, y, sites=sites).predict_proba(x)
    even = clone(model).fit(x, y, sites=sites, sample_weight=np.full(120, 7.0)).predict_proba(x)
    np.testing.assert_allclose(even, plain, atol=1e-5)  # only the proportions matter
    by_hand = np.where(y == "ill", 1.0, 9.0)
    one = clone(model).fit(x, y, sites=sites, sample_weight=by_hand).predict_proba(x)
    other = clone(model).set_params(class_weight={"ill": 1.0, "well": 9.0}).fit(x, y, sites=sites).predict_proba(x)
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert one[:, 1].mean() > plain[:, 1].mean() + 0.05
    balanced = clone(model).set_params(class_weight="balanced").fit(x, y, sites=sites)
    shares = {label: np.mean(y == label) for label in ("ill", "well")}
    same = clone(model).set_params(class_weight={label: 1 / share for label, share in shares.items()})
    np.testing.assert_allclose(balanced.predict_proba(x), same.fit(x, y, sites=sites).predict_proba(x), atol=1e-5)
    with pytest.raises(FedSPMError, match="class_weight names 'dead'"):
        clone(model).set_params(class_weight={"dead": 2.0}).fit(x, y, sites=sites)
    with pytest.raises(FedSPMError, match="all weights of rows are zero"):
        clone(model).set_params(class_weight={"ill": 0, "well": 0}).fit(x, y)


@pytest.mark.parametrize("named", [True, False])
def test_a_data_frame_goes_by_its_names_with_and_without_sites(rows, named):
    polars = pytest.importorskip("polars")
    x, y, sites = rows
    frame = polars.DataFrame({name: x[:, k] for k, name in enumerate("abcdef")})
    model = FederatedClassifier("fedavg", **QUICK).fit(frame, y, sites=sites if named else None)
    assert list(model.feature_names_in_) == list("abcdef")
    np.testing.assert_array_equal(model.predict_proba(frame.select(list("fedcba"))), model.predict_proba(frame))
    assert model.client_names_ == (list(dict.fromkeys(sites.tolist())) if named else ["all"])


@pytest.mark.parametrize("gone", [None, np.nan, pandas.NA])
def test_rows_without_a_label_or_a_site_are_named(rows, gone):
    x, y, sites = rows
    labels, places = pandas.Series(y, dtype=object), pandas.Series(sites, dtype=object)
    labels[3] = places[4] = gone
    with pytest.raises(FedSPMError, match="y has no label in row 4"):
        FederatedClassifier(rounds=1).fit(pandas.DataFrame(x, columns=list("abcdef")), labels, sites=sites)
    with pytest.raises(FedSPMError, match="sites has missing values"):
        FederatedClassifier(rounds=1).fit(x, y, sites=places)
