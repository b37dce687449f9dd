"""What sites claim of themselves: too many rows, an update out of proportion. Each is refused by the site's name."""

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from flwr.app import ConfigRecord

from fedspm.algorithms import ALGORITHMS
from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import FedSPMError
from fedspm.deploy.server import gather
from fedspm.engines.flower import wire
from fedspm.runs.config import resolve
from fedspm.training.loop import begin, one_round
from postbox import algorithm_of, loop_engine
from small import small_settings

MOST = small_settings().max_update


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("rows", [10**9, 1_000_001, 0, -5])
def test_a_site_that_claims_absurdly_many_rows_is_refused_by_name(vectors, tmp_path, rows):
    """A billion rows would be a share of .9999999 of every mean."""

    def between(step, site, content):
        if (step, site) == ("join", "south"):
            content["fedspm"] = ConfigRecord({**content["fedspm"], "rows": rows})
        return content

    engine = loop_engine(vectors, algorithm_of(FedSPM, small_settings(), vectors), tmp_path, between)
    config = resolve({"sites": {"names": list(vectors.names), "wait": 1}})
    with pytest.raises(FedSPMError, match=rf"site 'south' claims {rows:,} rows.*larger sites\.max_rows"):
        gather(engine.post, config, lambda line: None)


def test_as_many_rows_as_the_setting_allows_are_believed(vectors, tmp_path):
    engine = loop_engine(vectors, algorithm_of(FedSPM, small_settings(), vectors), tmp_path)
    names = list(vectors.names)
    assert gather(engine.post, resolve({"sites": {"names": names, "max_rows": 150}}), print).keys() == set(names)
    with pytest.raises(FedSPMError, match=r"site 'west' claims 150 rows.*sites\.max_rows = 149"):
        gather(engine.post, resolve({"sites": {"names": names, "max_rows": 149}}), print)


def hundredfold(shared):
    """Changes a reply as if the site had moved a hundred times as far."""

    def bad(content):
        tensors = wire.to_tensors(content["reply"])
        content["reply"] = wire.to_record(
            {name: shared[name] + 100 * (each - shared[name]) for name, each in tensors.items()}
        )
        return content

    return bad


@pytest.mark.parametrize(("name", "step"), [("fedspm", "maximise"), ("fedavg", "update"), ("cluster-fl", "update")])
def test_an_update_out_of_proportion_is_left_out_and_named(vectors, tmp_path, name, step):
    torch.set_num_threads(1)
    algorithm = algorithm_of(ALGORITHMS[name], small_settings(algorithm=name), vectors)
    spoil = {}

    def between(asked, site, content):
        return spoil["bad"](content) if (asked, site) == (step, "south") and spoil else content

    engine = loop_engine(vectors, algorithm, tmp_path, between)
    shared = begin(algorithm, engine)
    first = one_round(algorithm, engine, shared, 0)
    assert engine.said == []  # an honest round
    spoil["bad"] = lambda content: None
    expected = one_round(algorithm, engine, shared, 0)
    engine.said.clear()
    spoil["bad"] = hundredfold(shared)
    assert_same(expected, one_round(algorithm, engine, shared, 0))
    assert len(engine.said) == 1
    assert f"site 'south', step {step}: its update has the length" in engine.said[0]
    assert f"more than {MOST:g} times is refused (max_update = {MOST:g})" in engine.said[0]
    assert engine.refused.keys() == {"south"}
    spoil.clear()
    assert_same(first, one_round(algorithm, engine, shared, 0))
