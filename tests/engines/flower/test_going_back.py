"""A round is done again with sites that have rested before it."""

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from test_server import assert_same, spm  # noqa: F401

from fedspm.algorithms.fedspm import FedSPM
from fedspm.engines.flower.site_store import Store
from fedspm.training.loop import begin, one_round
from postbox import algorithm_of, loop_engine
from small import small_settings


def test_a_site_that_rested_long_can_do_its_first_exchange_again(tmp_path):
    store = Store(tmp_path)
    for place in ((1, 0), (1, 1), (9, 0)):
        store.keep(place, {"at": torch.tensor(place)})
    assert store.before((9, 0))[0] == (1, 1)


def test_a_round_is_repeated_with_a_site_that_rested_long(vectors, tmp_path, spm):  # noqa: F811
    """North misses rounds 1 to 3; then the server dies in the round it is back in, and does it again."""
    engine = loop_engine(vectors, spm, tmp_path)
    shared = one_round(spm, engine, begin(spm, engine), 0)
    north = engine.grid.sites.pop(10)
    for number in (1, 2, 3):
        shared = one_round(spm, engine, shared, number)
    engine.grid.sites[10] = north
    expected = one_round(spm, engine, shared, 4)
    assert engine.absent == {}
    again = one_round(spm, engine, shared, 4)
    assert engine.absent == {}
    assert_same(expected, again)


def test_a_round_of_few_drawn_sites_is_repeated(vectors, tmp_path):
    """With `clients_per_round` it is usual to have rested for three rounds."""
    algorithm = algorithm_of(FedSPM, small_settings(rounds=20, clients_per_round=1), vectors)
    drawn = [int(algorithm.participants(number)[0]) for number in range(20)]
    late = next(number for number in range(4, 20) if drawn[number] not in drawn[number - 3 : number])
    engine = loop_engine(vectors, algorithm, tmp_path)
    shared = begin(algorithm, engine)
    for number in range(late):
        shared = one_round(algorithm, engine, shared, number)
    expected = one_round(algorithm, engine, shared, late)
    assert_same(expected, one_round(algorithm, engine, shared, late))
