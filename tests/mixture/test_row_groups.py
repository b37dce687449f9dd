"""Rows that stay together in the sums of k-means."""

import torch
from hypothesis import given
from hypothesis import strategies as some

from fedspm.mixture.row_groups import group_means, row_groups


def rows(n, features=4, seed=0):
    return torch.randn(n, features, generator=torch.Generator().manual_seed(seed))


@given(some.integers(0, 200), some.integers(1, 30), some.integers(0, 5))
def test_every_group_has_enough_rows(n, least, seed):
    group = row_groups(rows(n, seed=seed), least)
    assert len(group) == n
    count = torch.bincount(group)
    assert len(count) <= 1 or int(count.min()) >= least
    assert len(count) > 1 or n < 3 * least


@given(some.integers(1, 150), some.integers(1, 20), some.integers(0, 20))
def test_groups_of_a_larger_min_count_are_unions(n, least, more):
    """Or the difference of two runs would show what lies between."""
    x = rows(n)
    fine, coarse = row_groups(x, least), row_groups(x, least + more)
    pairs = torch.stack([fine, coarse], 1).unique(dim=0)
    assert len(pairs) == len(fine.unique())


def test_groups_follow_from_the_rows_alone():
    x = rows(100)
    group = row_groups(x, 10)
    assert torch.equal(row_groups(3 * x + 1, 10), group)  # in whatever units
    order = torch.randperm(100, generator=torch.Generator().manual_seed(1))
    again = row_groups(x[order], 10)
    same = group[order][:, None] == group[order]
    assert torch.equal(again[:, None] == again, same)


def test_missing_values_and_constant_columns_are_no_obstacle():
    x = rows(60)
    x[::7, 1] = torch.nan
    x[:, 2] = 5.0
    assert int(torch.bincount(row_groups(x, 10)).min()) >= 10
    assert int(torch.bincount(row_groups(torch.zeros(60, 3), 10)).min()) >= 10


def test_images_are_grouped_by_their_coarse_averages():
    x = torch.rand(50, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    x[::2] += 5  # bright ones and dark ones
    group = row_groups(x, 10)
    assert set(group[::2].tolist()).isdisjoint(group[1::2].tolist())


def test_a_row_becomes_the_mean_of_its_group():
    features, group = rows(6), torch.tensor([0, 1, 0, 1, 1, 0])
    found = group_means(features, group)
    torch.testing.assert_close(found[2], features[[0, 2, 5]].mean(0))
    torch.testing.assert_close(found.sum(0), features.sum(0))
