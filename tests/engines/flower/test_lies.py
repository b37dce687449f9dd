"""A site that lies: the server across sites makes of it what the server of one process makes of it, to the bit."""

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from fedspm import Federation
from fedspm.algorithms import ALGORITHMS
from fedspm.base.errors import FedSPMError
from fedspm.engines.flower import wire
from fedspm.engines.flower.handshake import Introduction, require_shares
from fedspm.federated.replies import Combined, Mean, PerClient
from fedspm.testing.liars import LIES, Liar, LyingEngine
from fedspm.training.loop import begin, one_round
from postbox import algorithm_of, loop_engine
from small import small_settings, toy_rows

NAMES = ("north", "south", "west", "east", "coast")
ROUNDS = 2


@pytest.fixture(scope="module")
def five():
    return Federation.from_arrays({name: toy_rows(60, i / 2, False, seed=i) for i, name in enumerate(NAMES)}, None)


def read(content, site):
    """The reply in a message."""
    header, tensors = wire.header_of(content), wire.to_tensors(content["reply"])
    if header["kind"] == "rows":
        return PerClient.of(site, **tensors)
    mean = Mean(header["weight"], **tensors)
    return mean if header["kind"] == "mean" else Combined(mean, PerClient.of(site, **wire.to_tensors(content["row"])))


@pytest.mark.parametrize(
    ("name", "rule", "lie"),
    [
        ("fedspm", "norm", "sign flip × 4"),
        ("fedspm", "norm", "update × 10"),
        ("fedspm", "norm", "own γ + 100"),
        ("fedspm", "norm", "τ negative"),
        ("fedspm", "median", "sign flip"),
        ("fedspm", "trimmed", "sign flip"),
        ("fedspm", "krum", "noise of the honest length"),
        ("fedgmm", "median", "sign flip"),
        ("scaffold", "trimmed", "update × 4"),
        ("fedadam", "krum", "sign flip"),
        ("fedem", "norm", "NaN"),
        ("cluster-fl", "median", "zero update"),
    ],
)
def test_a_lie_has_the_same_bits_in_process_and_across_sites(five, tmp_path, name, rule, lie):
    algorithm = algorithm_of(ALGORITHMS[name], small_settings(algorithm=name, robust=rule), five)
    torch.set_num_threads(1)
    with LyingEngine(five, liars={"south": LIES[lie]}, seed=0, workers=1) as local:
        expected = begin(algorithm, local)
        for number in range(ROUNDS):
            expected = one_round(algorithm, local, expected, number)
    liar, sent = Liar(LIES[lie]), {}

    def between(step, site, content):
        declared = algorithm.steps.get(step)
        if site != "south" or declared is None or declared.when != "round":
            return content
        tag, index = wire.Tag.parse(wire.header_of(content)["tag"]), NAMES.index(site)
        told = liar.tell(declared, site, index, tag.turn - 1, sent["shared"], read(content, site))
        return wire.reply_message(tag, site, 60, told)

    engine = loop_engine(five, algorithm, tmp_path, between)
    shared = begin(algorithm, engine)
    for number in range(ROUNDS):
        sent["shared"] = shared
        shared = one_round(algorithm, engine, shared, number)
    assert shared.keys() == expected.keys()
    for tensor, value in shared.items():
        assert torch.equal(value, expected[tensor]), tensor
    assert engine.refused.keys() == local.refused.keys()
    if lie in ("sign flip × 4", "τ negative", "NaN"):
        assert engine.refused.keys() == {"south"}
        assert "site 'south'" in engine.refused["south"]


def test_a_site_that_claims_too_large_a_share_of_the_rows_is_named():
    def claimed(**rows):
        return {name: Introduction(i, n, (6,), (0, 1), False) for i, (name, n) in enumerate(rows.items())}

    require_shares(claimed(north=900, south=100), 0.5)  # of two, nobody knows
    require_shares(claimed(north=500, south=300, west=200), 0.5)
    with pytest.raises(
        FedSPMError, match=r"site 'west' claims 9,000 of all 16,000 rows, .*0\.562 .*sites\.max_share = 0\.5"
    ):
        require_shares(claimed(north=4000, south=3000, west=9000), 0.5)
