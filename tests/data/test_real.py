"""The real data sets have the published counts. Runs where they are present: $FEDSPM_DATA, packages, the user cache."""

import warnings

import numpy as np
import pytest

from fedspm.data.catalog.cifar import COARSE_OF
from fedspm.data.catalog.isic import CENTERS, FOLDS
from fedspm.data.catalog.sources import NAMED


@pytest.fixture
def arrays(request):
    data = NAMED[request.param]
    if data.look() is None:
        pytest.skip(f"{data.name} is not on this machine: {data.fix}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return data.load().arrays


@pytest.mark.parametrize("arrays", ["fashion-mnist"], indirect=True)
def test_fashion_mnist(arrays):
    assert arrays["images"].shape == (70_000, 28, 28)
    assert np.bincount(arrays["labels"]).tolist() == [7000] * 10


@pytest.mark.parametrize("arrays", ["cifar10"], indirect=True)
def test_cifar10(arrays):
    assert arrays["images"].shape == (60_000, 32, 32, 3)
    assert np.bincount(arrays["labels"]).tolist() == [6000] * 10
    np.testing.assert_allclose(channel_means(arrays["images"]), [0.4919, 0.4827, 0.4472], atol=0.02)


@pytest.mark.parametrize("arrays", ["cifar100"], indirect=True)
def test_cifar100(arrays):
    assert arrays["images"].shape == (60_000, 32, 32, 3)
    assert np.bincount(arrays["fine"]).tolist() == [600] * 100
    assert np.bincount(arrays["labels"]).tolist() == [3000] * 20
    np.testing.assert_array_equal(arrays["labels"], COARSE_OF[arrays["fine"]])
    np.testing.assert_allclose(channel_means(arrays["images"]), [0.5074, 0.4867, 0.4411], atol=0.02)


@pytest.mark.parametrize("arrays", ["fed-isic2019"], indirect=True)
def test_fed_isic2019(arrays):
    for center in np.unique(arrays["center"]):
        mine = arrays["train"][arrays["center"] == center]
        assert (int(mine.sum()), int((~mine).sum())) == FOLDS[center], CENTERS[center]
    assert set(np.unique(arrays["center"])) >= {1, 2, 3, 4, 5}
    assert arrays["images"].shape[1:] == (64, 64, 3)
    assert set(np.unique(arrays["labels"])) == set(range(8))


def channel_means(images):
    """Of every twentieth image, which are in no order that means anything."""
    return images[::20].mean((0, 1, 2)) / 255
