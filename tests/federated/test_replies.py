"""Merging replies: the order does not matter, nothing is counted twice, nobody is forgotten."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedspm.federated.replies import Mean, PerClient

client = st.tuples(st.integers(1, 1000), st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3))


def fold(replies):
    first, *others = replies
    for other in others:
        first = first.merge(other)
    return first


def means(clients):
    return [Mean(weight, a=torch.tensor(values)) for weight, values in clients]


@given(st.lists(client, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_mean_is_the_weighted_mean_in_any_order(clients, random):
    expected = np.average([v for _, v in clients], axis=0, weights=[w for w, _ in clients])
    shuffled = random.sample(clients, len(clients))
    for order in (clients, shuffled):
        np.testing.assert_allclose(fold(means(order)).result()["a"], expected, rtol=1e-5, atol=1e-5)


@given(st.lists(client, min_size=3, max_size=3))
def test_merging_is_associative(clients):
    a, b, c = means(clients)
    x, y, z = means(clients)
    np.testing.assert_allclose(
        a.merge(b).merge(c).result()["a"], x.merge(y.merge(z)).result()["a"], rtol=1e-6, atol=1e-6
    )


def test_whole_numbers_stay_whole():
    merged = Mean(1, steps=torch.tensor(3)).merge(Mean(1, steps=torch.tensor(4))).result()
    assert merged["steps"].dtype == torch.int64


def test_a_tensor_is_averaged_over_those_who_sent_it():
    merged = fold([Mean(1, a=torch.tensor(3.0)), Mean(3, a=torch.tensor(7.0), b=torch.tensor(5.0))]).result()
    assert merged == {"a": 6.0, "b": 5.0}


def test_rows_come_in_client_order_and_the_absent_keep_their_last_row():
    rows = PerClient.of("b", tau=torch.tensor([2.0])).merge(PerClient.of("a", tau=torch.tensor([1.0])))
    previous = torch.tensor([[7.0], [8.0], [9.0]])
    assert rows.stack("tau", ["a", "b", "c"], previous).flatten().tolist() == [1, 2, 9]
    with pytest.raises(KeyError, match="did not answer"):
        rows.stack("tau", ["a", "b", "c"])
    with pytest.raises(KeyError, match="twice"):
        rows.merge(PerClient.of("a", tau=torch.tensor([1.0])))
