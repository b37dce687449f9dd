"""The section of every report that says what federation brings, and when it brings nothing."""

import numpy as np
import pytest
import torch

from fedspm import FederatedClassifier, Federation
from fedspm.federated.evaluation import predictions
from fedspm.report.should_i_federate import SHOWN, row_difference, should_i_federate, verdict
from fedspm.training.baselines import baselines
from small import toy_rows


def test_a_difference_is_paired_by_row():
    these, those = torch.tensor([1, 1, 1, 0, 1, 0]).bool(), torch.tensor([1, 0, 1, 0, 0, 1]).bool()
    mean, half = row_difference(these, those)
    differences = np.array([0, 1, 0, 0, 1, -1])
    assert mean == pytest.approx(differences.mean())
    assert half == pytest.approx(1.96 * differences.std(ddof=1) / 6**0.5)


@pytest.mark.parametrize(
    ("figure", "said"),
    [((0.05, 0.02), "good"), ((-0.05, 0.02), "bad"), ((0.01, 0.02), "no difference"), ((0.3, None), "one seed only")],
)
def test_a_verdict_needs_an_interval_that_leaves_out_zero(figure, said):
    assert said in verdict(figure, "good", "bad")


def test_the_answer_of_a_model(vectors):
    model = FederatedClassifier(components=2, rounds=2, workers=1).fit(vectors)
    found = should_i_federate(model.model_, vectors)
    table = dict(found.rows)
    metrics = model.evaluate(vectors)
    assert table["FedSPM, each client's own answers"][0] == pytest.approx(metrics["average_accuracy"])
    assert table["FedSPM, the system's answers"][0] == pytest.approx(metrics["system_accuracy"])
    own = [metrics["clients"][name]["accuracy"] for name in vectors.names]
    assert table["FedSPM, each client's own answers"][1:] == pytest.approx(own)
    (boosting,) = baselines(vectors, ["gradient boosting"], ["alone"])
    assert table["gradient boosting, each client alone"][0] == pytest.approx(boosting.metrics()["accuracy"])
    assert [sentence.split(":")[0] for sentence in found.sentences[:3]] == ["Federation", "Pooling", "Routing"]
    said = torch.cat([each.own == each.y for each in predictions(model.model_, vectors)])
    best = max(
        (other for other in baselines(vectors, SHOWN) if other.rows == "alone"), key=lambda other: other.right.sum()
    )
    assert f"{100 * row_difference(said, best.right)[0]:+.1f}" in found.sentences[0]


def test_baselines_are_those_of_scikit_learn_and_a_site_with_one_class_says_it():
    from sklearn.ensemble import RandomForestClassifier

    rows = {name: toy_rows(80, i / 2, False, seed=i) for i, name in enumerate(("both", "one"))}
    x, y = rows["one"]
    with pytest.warns(UserWarning, match="one class only"):
        federation = Federation.from_arrays(
            {"both": rows["both"], "one": (x, np.full_like(y, "ill"))}, test_fraction=0.5
        )
    (alone, pooled) = baselines(federation, ["random forest"], ["alone", "pooled"])
    metrics = alone.metrics()
    assert metrics["clients"]["one"]["accuracy"] == 1
    assert metrics["clients"]["one"]["auroc"] is None
    part, test = federation.train[0], federation.test[0]
    forest = RandomForestClassifier(random_state=0).fit(part.x.numpy(), part.y.numpy())
    assert metrics["clients"]["both"]["accuracy"] == pytest.approx(forest.score(test.x.numpy(), test.y.numpy()))
    assert pooled.probabilities.shape == (80, 2)
