"""The Flower engine in a loop: the same bits as in process, whatever happens to a site."""

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from conftest import small_settings
from fedspm.algorithms import ALGORITHMS
from fedspm.engines.local import LocalEngine
from fedspm.training import begin, one_round, personalised
from postbox import algorithm_of, loop_engine


def trained(algorithm, engine, rounds=3):
    shared = begin(algorithm, engine)
    for number in range(rounds):
        shared = one_round(algorithm, engine, shared, number)
    model = personalised(algorithm, engine, shared)
    return model.shared, model.privates


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_the_same_bits_as_in_process(vectors, tmp_path, name):
    algorithm = algorithm_of(ALGORITHMS[name], small_settings(algorithm=name), vectors)
    with LocalEngine(vectors, seed=0, workers=1) as local:
        shared, privates = trained(algorithm, local)
    engine = loop_engine(vectors, algorithm, tmp_path)
    torch.set_num_threads(1)
    shared_again, privates_again = trained(algorithm, engine)
    assert engine.said == []
    assert_same(shared, shared_again)
    for one, other in zip(privates, privates_again, strict=True):
        assert_same(one, other)
