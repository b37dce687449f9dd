"""The constructed federation against slow loops over pixels, clients and classes."""

import numpy as np
import pytest
import torch

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.data.catalog.fashion import load_sample, read_idx
from fedspm.data.heterogeneity import Heterogeneity, impose
from fedspm.data.partition import partition_by_class
from fedspm.data.shifts import client_offset, shift_component, strength

NAMES = [str(k) for k in range(10)]


@pytest.fixture(scope="module")
def sample():
    images, labels = load_sample()
    return images[:2000], labels[:2000]


def test_the_sample_is_real_and_balanced():
    images, labels = load_sample()
    assert images.shape == (10_000, 28, 28)
    assert (np.bincount(labels) == 1000).all()
    assert 60 < images.mean() < 85  # Fashion-MNIST's mean is 72.9


@pytest.mark.parametrize("client", range(8))
def test_pixels_of_every_client_by_hand(client):
    image = torch.rand(1, 3, 5, 4, generator=torch.Generator().manual_seed(client))
    found = (shift_component(image, 1, (0, 1, 2)) + client_offset(client, (3, 5, 4), 0.3, 0.5)).clamp(0, 1)
    for channel in range(3):
        for row in range(5):
            for column in range(4):
                value = 1 - image[0, channel, row, column].item()
                red_up = client % 2 == 0
                value += {0: 0.3, 1: 0.0, 2: -0.3}[channel] * (1 if red_up else -1)
                from_top = row if client // 2 % 2 == 0 else 4 - row
                from_left = column if client // 4 % 2 == 0 else 3 - column
                value += 0.5 * (1 - from_top / 4) + 0.5 * (1 - from_left / 3) - 0.25
                assert found[0, channel, row, column].item() == pytest.approx(min(max(value, 0), 1), abs=1e-5)


def test_no_two_clients_shift_alike():
    offsets = {tuple(client_offset(i, (3, 4, 4), 0.3, 0.5).flatten().tolist()) for i in range(100)}
    assert len(offsets) == 100
    assert [strength(8 * level) for level in range(5)] == [1, 0.5, 0.75, 0.25, 0.875]


def test_components_differ():
    image = torch.rand(1, 3, 16, 16)
    shown = {tuple(shift_component(image, c, (0, 1, 2)).flatten().tolist()) for c in range(16)}
    assert len(shown) == 16


def test_the_partition_loses_and_doubles_nothing(sample):
    _, labels = sample
    parts = partition_by_class(labels, 7, 1.0, seed=1)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))


def test_a_small_alpha_gives_skewed_clients(sample):
    _, labels = sample

    def skew(alpha):
        counts = [np.bincount(labels[rows], minlength=10) for rows in partition_by_class(labels, 5, alpha, seed=0)]
        return np.mean([count.max() / count.sum() for count in counts])

    assert skew(0.3) > skew(10.0) + 0.1


def test_too_many_clients_for_the_rows_is_said():
    with pytest.raises(FedSPMError, match=r"fewer clients.*larger alpha_inter"):
        partition_by_class(np.arange(30) % 3, 10, 0.1, seed=0)


@pytest.mark.parametrize(("clients", "components"), [(2, 1), (8, 2), (11, 3)])
def test_any_number_of_clients_and_true_components(sample, clients, components):
    federation = impose(*sample, NAMES, Heterogeneity(clients=clients, true_components=components), seed=0)
    assert len(federation.names) == clients
    everything = sum(map(len, federation.train)) + sum(map(len, federation.test))
    assert everything == 2000
    for train, test in zip(federation.train, federation.test, strict=True):
        assert len(test) == round(0.3 * (len(train) + len(test)))
        assert train.x.min() >= 0
        assert train.x.max() <= 1
        assert train.x.is_contiguous(memory_format=torch.channels_last)


def test_the_seed_decides_everything(sample):
    fingerprints = [impose(*sample, NAMES, Heterogeneity(), seed=seed).fingerprint for seed in (0, 0, 1)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_shifts_switch_off(sample):
    plain = Heterogeneity(colour=0, brightness=0, inversion=False, permutation=False, clients=2)
    federation = impose(*sample, NAMES, plain, seed=0)
    x, y = federation.train[0].x, federation.train[0].y
    original = torch.tensor(sample[0]).float() / 255
    match = (original - x[0, 0]).abs().amax((1, 2)).argmin()
    torch.testing.assert_close(original[match], x[0, 2])
    assert y[0] == sample[1][match]


def test_labels_are_permuted_within_every_client_and_component(sample):
    with_permutation = impose(*sample, NAMES, Heterogeneity(clients=2), seed=0)
    without = impose(*sample, NAMES, Heterogeneity(clients=2, permutation=False), seed=0)
    permutations = set()
    for i in range(2):
        for c in range(2):
            mine = without.truth.train[i] == c
            pairs = set(zip(without.train[i].y[mine].tolist(), with_permutation.train[i].y[mine].tolist(), strict=True))
            assert len(pairs) == len({before for before, _ in pairs}) == len({after for _, after in pairs})
            permutations.add(frozenset(pairs))
    assert len(permutations) == 4


def test_validation_rows_come_from_training_rows_only(sample):
    federation = impose(*sample, NAMES, Heterogeneity(clients=3), seed=0)
    held = federation.with_validation(0.2, seed=0)
    for before, kept, validation in zip(federation.train, held.train, held.test, strict=True):
        assert len(kept) + len(validation) == len(before)
        rows = {row.numpy().tobytes() for row in before.x}
        assert all(row.numpy().tobytes() in rows for row in validation.x)


def test_validation_leaves_rows_to_train_on(vectors):
    for fraction, left in ((0.99, 1), (0.999, 0)):
        why = f"validation_fraction = {fraction} leaves {left} of the 90 training rows of client 'north'"
        with pytest.raises(FedSPMError, match=why):
            vectors.with_validation(fraction, seed=0)
    assert vectors.with_validation(0.95, seed=0).counts == (4, 6, 8)


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x08\x03" + b"\x00" * 12 + b"extra", b"junk" * 100])
def test_a_damaged_idx_file_is_named(tmp_path, content):
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match="images-idx3-ubyte"):
        read_idx(path, 3)
