"""Every metric against a loop over rows: clients of unequal size, a model that is often wrong and often misroutes."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.metrics import balanced_accuracy_score

from fedspm import Federation
from fedspm.algorithms import algorithm_named
from fedspm.engines.local import LocalEngine
from fedspm.federated import evaluation
from fedspm.federated.evaluation import Model, evaluate, from_counts
from fedspm.federated.metrics import MISTAKES, SHOWN, expected_calibration_error, purity_count, scores
from fedspm.federated.task import Task
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round
from small import small_settings, toy_rows

SIZES = {"north": 40, "south": 70, "west": 15}


@pytest.fixture(scope="module")
def federation():
    train = {name: toy_rows(50, i / 2, bool(i % 2), seed=i) for i, name in enumerate(SIZES)}
    test = {name: toy_rows(n, i / 2, bool(i % 2), seed=10 + i) for i, (name, n) in enumerate(SIZES.items())}
    return Federation.from_arrays(train, test)


def looked_at(federation, name, clients=3):
    """A model after one round, its metrics, and for every test row (home, y, what each client says, the posterior)."""
    algorithm = algorithm_named(name)(small_settings(algorithm=name), Task.of_federation(federation))
    with LocalEngine(federation, seed=0, workers=1) as engine:
        model = personalised(algorithm, engine, one_round(algorithm, engine, begin(algorithm, engine), 0))
    rows = []
    with torch.no_grad():
        for home, part in enumerate(federation.test):
            embedding = model.embed(part.x)
            said = torch.stack([model.local(i, embedding) for i in range(clients)], 1)  # (n, m, k)
            posterior = model.posterior(embedding) if algorithm.routes else [None] * len(part)
            rows += list(zip([home] * len(part), part.y.tolist(), said, posterior, strict=True))
    return evaluate(model, federation, full=True), rows


def test_metrics_of_a_method_that_routes(federation):
    found, rows = looked_at(federation, "fedspm")
    home, y = (np.array([row[i] for row in rows]) for i in (0, 1))
    routed = np.array([int(posterior.argmax()) for *_, posterior in rows])
    system = np.array([int(said[goal].argmax()) for (_, _, said, _), goal in zip(rows, routed, strict=True)])
    own = np.array([int(said[i].argmax()) for i, _, said, _ in rows])
    log_own = [math.log(said[i, label]) for i, label, said, _ in rows]
    log_home = [math.log(posterior[i]) for i, _, _, posterior in rows]
    expected = {
        "system_accuracy": np.mean(system == y),
        "average_accuracy": np.mean(own == y),
        "balanced_accuracy": balanced_accuracy_score(y, system),
        "average_balanced_accuracy": balanced_accuracy_score(y, own),
        "routing_accuracy": np.mean(routed == home),
        "error_from_routing": np.mean((system != y) & (routed != home)),
        "error_from_prediction": np.mean((system != y) & (routed == home)),
        "log_likelihood": np.mean(log_own),
        "predictive_log_likelihood": np.mean(log_own) + np.mean(log_home),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-5), name
    assert 0.05 < found["routing_accuracy"] < 0.95  # else much of this would be the same whatever was counted
    confusion = [[int(np.sum((home == i) & (routed == j))) for j in range(3)] for i in range(3)]
    assert found["routing_confusion"] == confusion
    assert confusion != np.transpose(confusion).tolist()
    by_client = {name: np.mean((own == y)[home == i]) for i, name in enumerate(SIZES)}
    for i, name in enumerate(SIZES):
        assert found["clients"][name]["accuracy"] == pytest.approx(by_client[name])
        assert found["clients"][name]["system_accuracy"] == pytest.approx(np.mean((system == y)[home == i]))
        assert found["clients"][name]["routing_accuracy"] == pytest.approx(np.mean((routed == i)[home == i]))
        assert found["clients"][name]["balanced_accuracy"] == pytest.approx(
            balanced_accuracy_score(y[home == i], system[home == i])
        )
    assert found["worst_client"] == min(by_client, key=by_client.get)
    assert found["worst_client_accuracy"] == pytest.approx(min(by_client.values()))
    assert found["average_accuracy"] != pytest.approx(np.mean(list(by_client.values())))  # rows count, not clients


class Decided(Model):
    """Two of three clients are a little for the second class, one is sure of the first."""

    def local(self, client, embedding):
        return torch.tensor([[1.0, 0.0]] if client == 0 else [[0.4, 0.6]])


def test_a_method_that_cannot_route_answers_by_vote(federation):
    found, rows = looked_at(federation, "ditto")
    votes = [sum(int(said[i].argmax()) for i in range(3)) >= 2 for _, _, said, _ in rows]
    assert found["system_accuracy"] == pytest.approx(np.mean([votes[j] == row[1] for j, row in enumerate(rows)]))
    assert "routing_accuracy" not in found
    algorithm = algorithm_named("ditto")(small_settings(algorithm="ditto"), Task.of_federation(federation))
    votes, mean = Decided(algorithm, {}, [{}] * 3).everybody({})
    torch.testing.assert_close(votes, torch.tensor([[1 / 3, 2 / 3]]))
    torch.testing.assert_close(mean, torch.tensor([[0.6, 0.4]]))


def test_purity_counts_the_commonest_truth_of_each_component():
    assert purity_count(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 0])) == 4
    assert purity_count(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 0])) == 3


def test_what_sites_counted_is_put_together_by_rows():
    counts = {
        "a": {"rows": torch.tensor(10), "right": torch.tensor(9), "routed": torch.tensor([7, 3, 0])},
        "c": {"rows": torch.tensor(30), "right": torch.tensor(12), "routed": torch.tensor([5, 1, 24])},
    }
    metrics = from_counts(counts, ("a", "b", "c"), routes=True)
    assert metrics["average_accuracy"] == pytest.approx(21 / 40)
    assert metrics["routing_accuracy"] == pytest.approx(31 / 40)
    assert {name: row["routing_accuracy"] for name, row in metrics["clients"].items()} == {"a": 0.7, "c": 0.8}
    assert metrics["routing_confusion"] == [[7, 3, 0], [0, 0, 0], [5, 1, 24]]
    assert (metrics["worst_client"], metrics["worst_client_accuracy"]) == ("c", 0.4)


@pytest.mark.parametrize("classes", [2, 4])
def test_scores_are_those_of_scikit_learn(classes):
    random = np.random.default_rng(classes)
    y = random.integers(0, classes, 300)
    p = random.dirichlet(np.ones(classes), 300) + 0.3 * np.eye(classes)[y]
    p = (p / p.sum(1, keepdims=True)).astype(np.float32)
    said = p.argmax(1)
    found = scores(torch.tensor(y), torch.tensor(said), torch.tensor(p))
    q = p.astype(float) / p.astype(float).sum(1, keepdims=True)
    ranked = {"y_score": q[:, 1]} if classes == 2 else {"y_score": q, "multi_class": "ovr"}
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(y, **ranked))
    precision = metrics.average_precision_score(y, q[:, 1] if classes == 2 else q)
    assert found["auprc"] == pytest.approx(precision)
    assert found["f1"] == pytest.approx(metrics.f1_score(y, said, average="macro"))
    assert found["recall"] == pytest.approx(metrics.recall_score(y, said, average=None))
    assert found["brier"] == pytest.approx(metrics.brier_score_loss(y, q[:, 1] if classes == 2 else q))
    assert found["log_loss"] == pytest.approx(metrics.log_loss(y, q))
    assert found["confusion"] == metrics.confusion_matrix(y, said).tolist()
    assert "undefined" not in found


def test_the_calibration_error_is_that_of_a_loop():
    random = np.random.default_rng(5)
    p = random.dirichlet(np.ones(3), 200)
    y, said = random.integers(0, 3, 200), p.argmax(1)
    error = 0.0
    for b in range(15):
        inside = [j for j in range(200) if b / 15 < p[j, said[j]] <= (b + 1) / 15]
        if inside:
            right = np.mean([said[j] == y[j] for j in inside])
            error += len(inside) / 200 * abs(right - np.mean([p[j, said[j]] for j in inside]))
    assert expected_calibration_error(y, said, p) == pytest.approx(error)


def test_a_site_with_one_class_has_no_area_under_the_curve_and_everything_else():
    rows = {name: toy_rows(60, i / 2, False, seed=i) for i, name in enumerate(("both", "one"))}
    x, y = rows["one"]
    with pytest.warns(UserWarning, match="one class only"):
        federation = Federation.from_arrays(
            {"both": rows["both"], "one": (x, np.full_like(y, "ill"))}, test_fraction=0.5
        )
    found, _ = looked_at(federation, "fedspm", clients=2)
    for who in ("system", "own"):
        one = found["clients"]["one"]["scores"][who]
        assert one["auroc"] is one["auprc"] is None
        assert "one class" in one["undefined"]
        assert one["recall"][1] is None
        assert one["log_loss"] > 0
        assert 0 < found["clients"]["both"]["scores"][who]["auroc"] <= 1
        assert 0 < found["scores"][who]["auroc"] <= 1
    json.dumps(found, allow_nan=False)


def test_of_many_clients_the_commonest_mistakes_are_kept():
    names = tuple(f"client {i}" for i in range(SHOWN + 1))
    counts = {}
    for i, name in enumerate(names):
        routed = torch.zeros(len(names), dtype=torch.long)
        routed[i], routed[(i + 1) % len(names)], routed[(i + 2) % len(names)] = 50, i + 1, 1
        routed[(i + 3) % len(names)], routed[(i + 4) % len(names)] = 1, 1
        counts[name] = {"rows": routed.sum(), "right": torch.tensor(0), "routed": routed}
    metrics = from_counts(counts, names, routes=True)
    assert "routing_confusion" not in metrics
    shown = metrics["routing_mistakes"]
    assert shown[0] == {"client": f"client {SHOWN}", "routed_to": "client 0", "rows": SHOWN + 1}
    assert len(shown) == MISTAKES
    wrong = sum(int(row["rows"]) for row in counts.values()) - 50 * len(names)
    assert sum(each["rows"] for each in shown) + metrics["other_routing_mistakes"] == wrong
    assert metrics["other_routing_mistakes"] > 0


def test_what_would_be_large_or_slow_is_left_out(federation, monkeypatch):
    monkeypatch.setattr(evaluation, "LARGEST", 8)
    found, _ = looked_at(federation, "fedavg")
    assert "confusion" in found["scores"]["system"]
    assert "confusion" not in found["clients"]["north"]["scores"]["system"]
    monkeypatch.setattr(evaluation, "CURVES", 5)
    found, _ = looked_at(federation, "fedavg")
    assert "auroc" in found["scores"]["own"]
    assert "scores" not in found["clients"]["north"]
