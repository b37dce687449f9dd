"""Replies that are not what was asked for: each is refused with a sentence that names the site, and changes nothing."""

import io

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import Refused, TooFewSites
from fedspm.engines.flower import wire
from fedspm.training.loop import begin, one_round
from postbox import algorithm_of, loop_engine
from small import small_settings


def test_tensors_come_back_as_they_went():
    tensors = {
        "a": torch.randn(3, 4),
        "b.weight": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "count": torch.tensor(3.5, dtype=torch.float64),
        "n": torch.tensor([1, 2]),
        "empty": torch.zeros(0, 3),
    }
    back = wire.to_tensors(wire.to_record(tensors))
    assert back.keys() == tensors.keys()
    for name, value in tensors.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value)


def test_a_tag_is_read_as_it_was_written():
    tag = wire.Tag("some-run", 3, 1, 2)
    assert wire.Tag.parse(str(tag)) == tag
    with pytest.raises(Refused, match="not the tag"):
        wire.Tag.parse("nonsense")


def header(**changes):
    def bad(content):
        content["fedspm"] = ConfigRecord({**content["fedspm"], **changes})
        return content

    return bad


def tensor(name, change):
    def bad(content):
        tensors = wire.to_tensors(content["reply"])
        tensors[name] = change(tensors.get(name, torch.zeros(2)))
        content["reply"] = wire.to_record(tensors)
        return content

    return bad


def value(number):
    def put(values):
        values = values.clone()
        values.flatten()[0] = number
        return values

    return put


def without(name):
    def bad(content):
        tensors = wire.to_tensors(content["reply"])
        content["reply"] = wire.to_record({key: each for key, each in tensors.items() if key != name})
        return content

    return bad


def raw(change, stype="safetensors"):
    def bad(content):
        data = change(content["reply"]["tensors"].data)
        content["reply"] = ArrayRecord({"tensors": Array("uint8", (len(data),), stype, data)})
        return content

    return bad


def pickled(_):
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return buffer.getvalue()


BAD = {
    "NaN": (tensor("tilt.gamma", value(np.nan)), "not finite"),
    "infinity": (tensor("tilt.gamma", value(np.inf)), "not finite"),
    "minus infinity": (tensor("tilt.gamma", value(-np.inf)), "not finite"),
    "a wrong shape": (tensor("tilt.gamma", lambda values: values[:2]), "of shape"),
    "a transposed shape": (tensor("tilt.gamma", lambda values: values.T), "of shape"),
    "a number too large to go on with": (tensor("tilt.gamma", value(3e38)), "which no training gives"),
    "a scalar": (tensor("tilt.gamma", lambda values: torch.tensor(1.0)), "of shape"),
    "double precision": (tensor("tilt.gamma", lambda values: values.double()), "float64"),
    "whole numbers": (tensor("tilt.gamma", lambda values: values.long()), "int64"),
    "complex numbers": (tensor("tilt.gamma", lambda values: values.to(torch.complex64)), "not a kind of number"),
    "brain floats": (tensor("tilt.gamma", lambda values: values.bfloat16()), "not a kind of number"),
    "an unknown name": (tensor("router.delta", lambda values: values), "is not a shared parameter"),
    "a head": (tensor("head.weight", lambda values: values), "not declared"),
    "responsibilities": (tensor("responsibilities", lambda values: values), "not declared"),
    "a missing name": (without("tilt.gamma"), "is missing"),
    "no tensors": (lambda content: RecordDict({"fedspm": content["fedspm"]}), "no 'reply'"),
    "no header": (lambda content: RecordDict({"reply": content["reply"]}), "no header"),
    "an empty message": (lambda content: RecordDict(), "no header"),
    "bytes that are no tensors": (raw(lambda data: b"nonsense"), "cannot be read"),
    "short bytes": (raw(lambda data: data[:-4]), "cannot be read"),
    "a pickle": (raw(pickled), "cannot be read"),
    "another format": (raw(pickled, "numpy.ndarray"), "not one array of safetensors"),
    "more rows": (header(rows=10**6), "when it joined"),
    "rows that are no number": (header(rows="many"), "when it joined"),
    "no weight": (header(weight=0.0), "weight"),
    "a negative weight": (header(weight=-90.0), "weight"),
    "a weight beyond its rows": (header(weight=1e12), "weight"),
    "a weight of NaN": (header(weight=float("nan")), "weight"),
    "an unknown site": (header(site="nowhere"), "not one of the sites"),
    "another site's name": (header(site="south"), "answers as 'south'"),
    "a stale tag": (header(tag="run1/1/1/0"), "belongs to exchange"),
    "another run's tag": (header(tag="run2/2/1/0"), "belongs to exchange"),
    "an unknown kind": (header(kind="sum"), "kind of reply"),
    "rows where a mean was due": (header(kind="rows"), "of the kind 'rows', not 'mean'"),
    "a refusal": (header(kind="refusal", why="no time"), "no time"),
}


@pytest.fixture(scope="module")
def after_a_round(vectors, tmp_path_factory):
    """An engine whose second round can be run again and again: what arrives from north is up to `spoil`."""
    algorithm = algorithm_of(FedSPM, small_settings(), vectors)
    spoil = {}

    def between(step, site, content):
        return spoil[step](content) if site == "north" and step in spoil else content

    torch.set_num_threads(1)
    engine = loop_engine(vectors, algorithm, tmp_path_factory.mktemp("sites"), between)
    shared = one_round(algorithm, engine, begin(algorithm, engine), 0)
    spoil["maximise"] = lambda content: None  # north's reply is lost: what a round without it gives
    without_north = one_round(algorithm, engine, shared, 1)
    return algorithm, engine, shared, spoil, without_north


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_refused_and_changes_nothing(after_a_round, kind):
    algorithm, engine, shared, spoil, expected = after_a_round
    spoil["maximise"], why = BAD[kind]
    before = {name: tensor.clone() for name, tensor in shared.items()}
    engine.said.clear()
    result = one_round(algorithm, engine, shared, 1)
    assert len(engine.said) == 1
    assert "'north'" in engine.said[0]
    assert why in engine.said[0]
    assert engine.absent.keys() == {"north"}
    for name, tensor in before.items():
        assert torch.equal(shared[name], tensor), name  # what was sent is as it was
        assert torch.equal(result[name], expected[name]), name  # and nothing of the reply is in the result


def test_a_good_reply_is_not_refused(after_a_round):
    algorithm, engine, shared, spoil, without_north = after_a_round
    spoil.clear()
    engine.said.clear()
    result = one_round(algorithm, engine, shared, 1)
    assert engine.said == []
    assert not torch.equal(result["tilt.xi"], without_north["tilt.xi"])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (tensor("tau", value(np.nan)), "not finite"),
        (tensor("tau", lambda values: values[:1]), "of shape"),
        (tensor("rows", lambda values: values), "not declared"),
        (without("tau"), "is missing"),
        (tensor("tau", lambda values: torch.tensor([-5.0, 95.0])), "not shares of its 90 rows"),
        (tensor("tau", lambda values: torch.tensor([1e6, 30.0])), "not shares of its 90 rows"),
        (tensor("tau", lambda values: 0.99 * values), "not shares of its 90 rows"),
        (header(kind="mean", weight=1.0), "of the kind 'mean', not 'rows'"),
    ],
)
def test_a_bad_row_of_tau_is_refused_and_the_last_one_kept(after_a_round, bad, why):
    algorithm, engine, shared, spoil, _ = after_a_round
    spoil.clear()
    spoil["expect"] = bad
    engine.said.clear()
    result = one_round(algorithm, engine, shared, 1)
    assert why in engine.said[0]
    assert torch.equal(result["tau"][0], shared["tau"][0])
    assert not torch.equal(result["tau"][1], shared["tau"][1])


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (tensor("right", lambda values: values + 1000), "not counts of 60 test rows"),
        (tensor("right", lambda values: -1 - values), "not counts of 60 test rows"),
        (tensor("rows", lambda values: -values), "not counts of -60 test rows"),
        (tensor("routed", value(-3)), "not counts of 60 test rows"),
        (tensor("routed", value(61)), "not counts of 60 test rows"),
        (tensor("routed", lambda values: values[:2]), "not one count per site"),
        (tensor("right", lambda values: values.double()), "not a count"),
        (without("right"), "'right' is missing"),
    ],
)
def test_impossible_counts_are_refused(after_a_round, bad, why):
    _, engine, shared, spoil, _ = after_a_round
    spoil.clear()
    engine.said.clear()
    assert engine.count(shared).keys() == {"north", "south", "west"}
    assert engine.said == []
    spoil["evaluate"] = bad
    assert engine.count(shared).keys() == {"south", "west"}
    assert why in engine.said[0]


SUMS = {
    "describe": [
        (tensor("count", lambda count: -1e9 * count), "cannot be, of 90 rows"),
        (tensor("count", lambda count: count / 2), "cannot be, of 90 rows"),
        (tensor("square", lambda square: -square), "negative"),
        (tensor("square", lambda square: square + 1e300), "not those of any rows"),
        (tensor("sum", lambda total: total + 1e300), "not those of any rows"),
        (tensor("sum", lambda total: total + 1e4), "not those of any rows"),  # larger than such squares allow
        (header(weight=90.0), "a sum has the weight 1"),
    ],
    "moments": [
        (tensor("count", lambda count: count + 1), "cannot be, of 90 rows"),
        (tensor("products", lambda products: -products), "negative"),
    ],
    "cluster": [
        (tensor("count", lambda count: count - 100), "cannot be, of 90 rows"),
        (tensor("count", lambda count: count + 1000), "cannot be, of 90 rows"),
    ],
}


@pytest.mark.parametrize(("step", "bad", "why"), [(step, *each) for step, cases in SUMS.items() for each in cases])
def test_impossible_sums_are_refused(vectors, tmp_path, step, bad, why):
    """The start needs everybody: it ends there, with the name of the site that is to blame."""
    algorithm = algorithm_of(FedSPM, small_settings(), vectors)
    spoilt = {("north", step): bad}
    engine = loop_engine(
        vectors, algorithm, tmp_path, lambda step, site, content: spoilt.get((site, step), lambda same: same)(content)
    )
    with pytest.raises(TooFewSites, match=rf"site 'north'.*{why}"):
        begin(algorithm, engine)


def test_one_of_two_sites_does_not_decide_what_kind_of_reply_is_due(vectors, tmp_path):
    two = vectors.without(["west"])
    algorithm = algorithm_of(FedSPM, small_settings(), two)
    spoil = {}
    engine = loop_engine(
        two, algorithm, tmp_path, lambda step, site, content: spoil.get((site, step), lambda same: same)(content)
    )
    shared = begin(algorithm, engine)
    spoil["north", "expect"] = header(kind="mean", weight=1.0)
    spoil["north", "maximise"] = header(kind="rows")
    one_round(algorithm, engine, shared, 0)
    assert engine.absent.keys() == {"north"}
    assert all("'north'" in line for line in engine.said)
