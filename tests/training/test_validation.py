"""Validation rows: held out of the training rows, class by class, the same for the same seed."""

import numpy as np
import pytest
import torch

from fedspm import Federation
from fedspm.base.errors import FedSPMError
from fedspm.data.heterogeneity import Heterogeneity, impose
from fedspm.training.validation import hold_out


def rows(n, labels, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)
    return x, np.resize(np.asarray(labels), n)


@pytest.fixture
def uneven():
    return Federation.from_arrays(
        {"many": rows(100, [0] * 8 + [1, 2]), "few": rows(7, [0, 1, 2], 1), "two": rows(2, [0, 1])}
    )


def test_every_row_is_kept_or_held_out_and_classes_are_in_proportion(uneven):
    left, validation = hold_out(uneven, 0.2, seed=3)
    for whole, kept, held in zip(uneven.train, left.train, validation.test, strict=True):
        both = torch.cat([kept.x, held.x])
        assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, whole.x.tolist()))
    assert torch.bincount(validation.test[0].y).tolist() == [16, 2, 2]
    assert len(validation.test[1]) == 1
    assert len(validation.test[2]) == 0  # a client keeps two rows
    assert left.counts == (80, 6, 2)
    assert left.test is None
    assert validation.train is left.train


def test_it_follows_from_the_seed(uneven):
    one, same, other = (hold_out(uneven, 0.2, seed)[1].test[0].x for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_class_keeps_a_row_to_train_on(uneven):
    left, _ = hold_out(uneven, 0.9, seed=0)
    for whole, kept in zip(uneven.train, left.train, strict=True):
        assert set(kept.y.tolist()) == set(whole.y.tolist())
        assert len(kept) >= 2


def test_test_rows_are_not_in_what_is_validated_on(vectors):
    left, validation = hold_out(vectors, 0.2, seed=0)
    assert left.test is vectors.test
    seen = {tuple(row) for part in (*validation.train, *validation.test) for row in part.x.tolist()}
    assert not seen & {tuple(row) for part in vectors.test for row in part.x.tolist()}


def test_true_components_go_with_their_rows():
    images = np.random.default_rng(0).integers(0, 255, (200, 8, 8), dtype=np.uint8)
    labels = np.arange(200) % 4
    federation = impose(images, labels, [*"abcd"], Heterogeneity(clients=2), seed=0)
    left, validation = hold_out(federation, 0.25, seed=0)
    for part, truth in zip((*left.train, *validation.test), (*left.truth.train, *validation.truth.test), strict=True):
        assert len(part) == len(truth)


@pytest.mark.parametrize("fraction", [0, 1, -0.5])
def test_a_share_lies_between_nothing_and_everything(uneven, fraction):
    with pytest.raises(FedSPMError, match="validation_fraction must lie between 0 and 1"):
        hold_out(uneven, fraction, seed=0)


def test_a_share_that_holds_out_nothing_is_refused(uneven):
    with pytest.raises(FedSPMError, match=r"0.001 holds out no row of any client, the largest has 100"):
        hold_out(uneven, 0.001, seed=0)
