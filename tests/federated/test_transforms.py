"""Clipping, noise, 16 bits and one exchange a round: what really leaves, the same on both engines."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from fedspm.algorithms import ALGORITHMS, algorithm_named
from fedspm.base.errors import FedSPMError, Refused, TooFewSites, TrainingFailed
from fedspm.engines.flower import wire
from fedspm.engines.flower.site import Site
from fedspm.engines.flower.site_store import noise_secret
from fedspm.engines.local import LocalEngine
from fedspm.federated.client import Client
from fedspm.federated.gate import withhold_rows
from fedspm.federated.replies import Mean, PerClient
from fedspm.federated.steps import Step
from fedspm.federated.transforms import GRID, decode, encode, transforms_of
from fedspm.federated.uploads import Count, Shares, Sum, Update
from fedspm.training.loop import begin, one_round
from postbox import algorithm_of, loop_engine
from small import small_settings

HALF = {"wire": {"precision": "half"}}
ONE = {"wire": {"exchanges": 1}}
NOISE = {"privacy": {"clip": 0.5, "noise": 0.1}}
OPTIONS = {
    "half": HALF,
    "one": ONE,
    "noise": NOISE,
    "clip": {"privacy": {"clip": 0.01}},
    "all": NOISE | {"wire": {"precision": "half", "exchanges": 1}},
}


def trained(algorithm, engine, rounds=3):
    shared = begin(algorithm, engine)
    for number in range(rounds):
        shared = one_round(algorithm, engine, shared, number)
    return shared


def in_process(federation, rounds=3, **changes):
    settings = small_settings(**changes)
    algorithm = algorithm_of(algorithm_named(settings.algorithm), settings, federation)
    with LocalEngine(federation, seed=0, workers=1) as engine:
        return trained(algorithm, engine, rounds), engine


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def client(round=0, name="north", n=90):
    return Client(name, 0, torch.zeros(n, 6), torch.zeros(n, dtype=torch.long), {}, round, 0)


NORTH = client()


@pytest.fixture
def fedmedian(monkeypatch):
    """The method of examples/plugin, whose updates are rows."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples" / "plugin" / "src")
    from fedspm_example.fedmedian import FedMedian

    monkeypatch.setitem(ALGORITHMS, "fedmedian", FedMedian)
    return FedMedian


def departed(values, client=NORTH, step="update", secret="", **changes):
    """(what the server sent, what leaves) of an update by `values`."""
    shared = {f"w.{i}": torch.full_like(value, 0.25) for i, value in enumerate(values)}
    moved = {f"w.{i}": shared[f"w.{i}"] + value for i, value in enumerate(values)}
    return shared, left(Mean(client.n, **moved), shared, client, step, secret, **changes)


def left(reply, shared, client=NORTH, step="update", secret="", **changes):
    """What leaves of a reply."""
    settings = small_settings(**changes)
    kinds = {"w": Update(), "predictor": Update(), "tau": Shares(), "loss": Sum(), "count": Count()}
    return encode(transforms_of(settings), settings, Step(step, kinds), client, shared, reply, secret)[0]


# -- the same on both engines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["fedspm", "fedem", "fedgmm", "feddrm", "cluster-fl", "ditto"])
def test_flower_gives_the_bits_and_bytes_of_the_in_process_engine(vectors, tmp_path, name, option):
    changes = {"algorithm": name, **OPTIONS[option]}
    if name in ("fedgmm", "cluster-fl") and "noise" in changes.get("privacy", {}):
        changes["privacy"] = {"clip": 0.5}  # with noise they are refused: tests/federated/test_accountant.py
    expected, local = in_process(vectors, 2, **changes)
    torch.set_num_threads(1)
    engine = loop_engine(vectors, algorithm_of(ALGORITHMS[name], small_settings(**changes), vectors), tmp_path)
    assert_same(expected, trained(engine.algorithm, engine, 2))
    assert engine.said == []
    assert engine.traffic.metrics() == local.traffic.metrics()


@pytest.mark.parametrize("changes", [{}, HALF])
def test_updates_that_are_rows_pass_the_gate(vectors, tmp_path, fedmedian, changes):
    changes = {"algorithm": "fedmedian", **changes}
    expected, local = in_process(vectors, 2, **changes)
    torch.set_num_threads(1)
    engine = loop_engine(vectors, algorithm_of(fedmedian, small_settings(**changes), vectors), tmp_path)
    assert_same(expected, trained(engine.algorithm, engine, 2))
    assert engine.said == []
    assert engine.traffic.metrics() == local.traffic.metrics()


def test_without_options_a_reply_leaves_as_it_is():
    same = Mean(3, w=torch.ones(2))
    assert transforms_of(small_settings()) == ()
    assert decode((), Step("update", {"w": Update()}), {"w": torch.zeros(2)}, same) is same


# -- clipping and noise ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-6, 0.3, 1.0, 1.0001, 50.0, 1e6])
def test_no_update_is_longer_than_the_clip(size):
    values = [size * torch.randn(40, 7, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    _, reply = departed(values, privacy={"clip": 1.0})
    change = torch.cat([value.flatten() for value in reply.as_sent()[1].values()]).double()
    clean = torch.cat([value.flatten() for value in values]).double()
    assert change.norm() <= 1.0
    assert torch.nn.functional.cosine_similarity(change, clean, dim=0) > 0.999
    if clean.norm() < 1:
        assert torch.allclose(change, clean, atol=1e-7)


def test_no_update_of_a_training_is_longer_than_the_clip(vectors, tmp_path):
    algorithm = algorithm_of(ALGORITHMS["fedspm"], small_settings(privacy={"clip": 0.02}), vectors)
    engine = loop_engine(vectors, algorithm, tmp_path)
    trained(algorithm, engine)
    replies = [content["reply"] for way, _, step, content in engine.grid.seen if (way, step) == ("up", "maximise")]
    norms = [torch.cat([each.flatten() for each in wire.to_tensors(reply).values()]).norm() for reply in replies]
    assert len(norms) == 9
    assert all(0.0199 < norm <= 0.02 for norm in norms)


def test_the_noise_has_the_scale_that_is_accounted_for():
    zeros = [torch.zeros(200, 500), torch.zeros(100)]
    _, reply = departed(zeros, privacy={"clip": 2.0, "noise": 1.5})
    values = torch.cat([value.flatten() for value in reply.as_sent()[1].values()])
    assert values.std() == pytest.approx(3.0, rel=0.01)
    assert abs(float(values.mean())) < 0.03
    settings, shares = {"components": 3, "privacy": {"clip": 2.0, "noise": 1e-3}}, []
    for round in range(400):
        row = PerClient.of("north", tau=torch.tensor([30.0, 30.0, 30.0]))
        shares.append(left(row, {}, client(round), "expect", **settings).rows["north"]["tau"] / 90)
    noise = torch.stack(shares) - 1 / 3
    assert noise.sum(1).abs().max() < 1e-6
    assert noise.std() == pytest.approx(
        1e-3 / math.sqrt(2) * math.sqrt(2 / 3), rel=0.1
    )  # one of three directions is lost


@pytest.mark.parametrize("clip", [0.3, 2.0])
def test_what_is_noised_lies_on_a_grid_that_does_not_depend_on_it(clip):
    for value in (0.0, 1e-3, 0.1234567):
        _, sent = departed([torch.full((50,), value)], privacy={"clip": clip, "noise": 4.0})
        steps = sent.as_sent()[1]["w.0"].double() / (4.0 * clip / GRID)
        assert torch.allclose(steps, steps.round(), atol=1e-3)


def test_tau_stays_a_vector_of_shares_under_any_noise(vectors):
    shared, _ = in_process(vectors, privacy={"clip": 1e-6, "noise": 20.0})
    assert (shared["tau"] > 0).all()
    assert torch.allclose(shared["tau"].sum(1), torch.tensor(vectors.counts).float())


@pytest.mark.parametrize(
    ("privacy", "why"),
    [
        ({"clip": 0.01}, r"leaves in PerClient.*reply with a Mean of shared parameters only, or train without"),
        ({"clip": 0.01, "noise": 1.0}, r"'predictor' of step 'update' would leave without noise, so that no ε holds"),
    ],
)
def test_an_update_in_rows_does_not_escape_the_clip(vectors, tmp_path, fedmedian, privacy, why):
    changes = {"algorithm": "fedmedian", "privacy": privacy}
    why = rf"step .*: .*{why}"
    with pytest.raises(TrainingFailed, match=why):
        in_process(vectors, 1, **changes)
    engine = loop_engine(vectors, algorithm_of(fedmedian, small_settings(**changes), vectors), tmp_path)
    with pytest.raises(TooFewSites, match=why):
        trained(engine.algorithm, engine, 1)


def test_an_update_beside_something_else_does_not_escape_the_clip():
    start = {"predictor.0.weight": torch.zeros(3)}
    clip = {"privacy": {"clip": 0.01}}
    for name, value in (("loss", torch.ones(())), ("predictor.0.steps", torch.tensor([7, 9]))):
        with pytest.raises(TrainingFailed, match=rf"'{name}' leaves in a Mean that privacy\.clip neither clips"):
            left(Mean(90, **{"predictor.0.weight": torch.ones(3), name: value}), start, **clip)
    sums = left(Mean(1, count=torch.tensor(90.0)), start, **clip)  # as those that standardise
    assert sums.totals()["count"] == 90


def test_what_leaves_beside_tau_is_kept():
    row = PerClient.of("north", tau=torch.tensor([30.0, 60.0]), loss=torch.tensor(0.5))
    noised = left(row, {}, step="expect", **NOISE).rows["north"]
    assert noised["loss"] == 0.5
    assert not torch.equal(noised["tau"], row.rows["north"]["tau"])


def test_noise_follows_from_secret_client_round_step_and_content_alone():
    noisy = {"privacy": {"clip": 1.0, "noise": 1.0}}
    value = [torch.full((50,), 0.01)]

    def sent(**changes):
        return departed(changes.pop("value", value), **changes, **noisy)[1].as_sent()[1]["w.0"]

    assert torch.equal(sent(), sent())
    others = [
        sent(secret="s"),
        sent(client=client(1)),
        sent(client=client(name="south")),
        sent(step="maximise"),
        sent(value=[torch.full((50,), 0.010001)]),
    ]
    for other in others:
        assert (other - sent()).std() > 1.0  # independent: √2, not 0


def test_two_runs_with_another_noise_or_bound_do_not_share_it():
    """With the same stream, 2 A − B would be the clean update of runs with z = 1 and z = 2."""
    value = [torch.full((50,), 0.01)]

    def noise(z, clip):
        sent = departed(value, privacy={"clip": clip, "noise": z})[1].as_sent()[1]["w.0"]
        return (sent - 0.01) / (z * clip)

    for z, clip in ((2.0, 1.0), (1.0, 2.0)):
        assert (noise(1.0, 1.0) - noise(z, clip)).std() > 1.0


def test_a_site_keeps_a_secret_of_its_own(tmp_path):
    one, other = noise_secret(tmp_path / "a"), noise_secret(tmp_path / "b")
    assert len(one) == 64
    assert one != other
    assert noise_secret(tmp_path / "a") == one  # also after a restart
    assert (tmp_path / "a" / "noise.key").stat().st_mode & 0o077 == 0
    (tmp_path / "a" / "noise.key").write_text("")
    with pytest.raises(Refused, match="too short to be a secret"):
        noise_secret(tmp_path / "a")


def test_resuming_gives_the_same_noise(vectors):
    settings = small_settings(**NOISE)
    algorithm = algorithm_of(ALGORITHMS["fedspm"], settings, vectors)
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = one_round(algorithm, engine, begin(algorithm, engine), 0)
        privates = dict(engine.privates)
        expected = one_round(algorithm, engine, shared, 1)
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        engine.restore(1, privates)
        assert_same(expected, one_round(algorithm, engine, shared, 1))


def test_running_statistics_cannot_be_clipped(vectors):
    block = {"encoder": "resnet", "momentum": 0.9, "steps": 1, "normalisation": "batch"}
    task = replace(algorithm_of(ALGORITHMS["fedavg"], small_settings(), vectors).task, shape=(3, 8, 8))
    with pytest.raises(FedSPMError, match=r"running statistics.*normalisation"):
        ALGORITHMS["fedavg"](small_settings(predictor=block, privacy={"clip": 1.0}), task)


def test_a_site_refuses_a_run_with_less_noise_than_it_wants(vectors, tmp_path):
    algorithm = algorithm_of(ALGORITHMS["fedspm"], small_settings(**NOISE), vectors)
    engine = loop_engine(vectors, algorithm, tmp_path)
    config = engine.grid.sites[10].config.model_copy(update={"min_noise": 1.0})
    engine.grid.sites[10] = Site(config)
    with pytest.raises(TooFewSites, match=r"privacy.noise = 0.1, this site's min_noise is 1"):
        begin(algorithm, engine)


def test_a_site_does_not_answer_what_would_leave_without_noise_after_training(vectors, tmp_path):
    algorithm = algorithm_of(ALGORITHMS["fedspm"], small_settings(**NOISE), vectors)
    engine = loop_engine(vectors, algorithm, tmp_path)
    shared = one_round(algorithm, engine, begin(algorithm, engine), 0)
    with pytest.raises(TooFewSites, match="do not use the step 'summarise'"):
        algorithm.onboarding.sketch(shared, engine)


# -- 16 bits ---------------------------------------------------------------------------------------------------------


def test_updates_go_up_in_half_the_bytes_and_come_back_nearly_the_same(vectors):
    full, plain = in_process(vectors, algorithm="fedavg")
    half, short = in_process(vectors, algorithm="fedavg", **HALF)
    assert short.traffic.up - 24 == (plain.traffic.up - 24) / 2  # three weights of 8 bytes
    assert short.traffic.down == plain.traffic.down
    for name, value in full.items():
        assert torch.allclose(value, half[name], atol=1e-4), name


def test_a_change_that_does_not_fit_is_refused(vectors, tmp_path):
    with pytest.raises(TrainingFailed, match="does not fit into 16 bits"):
        departed([torch.tensor([1e6])], **HALF)
    algorithm = algorithm_of(ALGORITHMS["fedavg"], small_settings(algorithm="fedavg", **HALF), vectors)
    spoilt = []

    def between(step, site, content):
        if step == "update" and site == "south":
            tensors = wire.to_tensors(content["reply"])
            name = next(iter(tensors))
            tensors[name] = spoilt[0](tensors[name])
            content["reply"] = wire.to_record(tensors)
        return content

    engine = loop_engine(vectors, algorithm, tmp_path, between)
    shared = begin(algorithm, engine)
    for spoil, why in ((lambda x: x + torch.inf, "not finite"), (lambda x: x.float(), "not torch.float16")):
        spoilt[:] = [spoil]
        one_round(algorithm, engine, shared, 0)
        assert engine.absent.keys() == {"south"}
        assert why in engine.absent["south"]


# -- one exchange ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedem", "feddrm", "fedgmm"])
def test_methods_that_use_only_their_own_tau_do_not_notice(vectors, name):
    two, _ = in_process(vectors, algorithm=name)
    one, _ = in_process(vectors, algorithm=name, **ONE)
    assert_same(two, one)


def test_one_exchange_uses_the_others_last_tau(vectors, tmp_path):
    settings = small_settings(em={"hold": 0, "start": "random"}, **ONE)
    algorithm = algorithm_of(ALGORITHMS["fedspm"], settings, vectors)
    engine = loop_engine(vectors, algorithm, tmp_path)
    shared = trained(algorithm, engine)
    steps = [step for way, site, step, _ in engine.grid.seen if (way, site) == ("down", "north")]
    assert steps.count("advance") == 3
    assert not {"expect", "maximise"} & set(steps)
    two, _ = in_process(vectors, em={"hold": 0, "start": "random"})
    assert not torch.equal(shared["tilt.xi"], two["tilt.xi"])
    assert torch.allclose(shared["tau"], two["tau"], rtol=0.2)


# -- rows that an update would show ----------------------------------------------------------------------------------

WITHHOLD = {"privacy": {"withhold_rows": True}}


@pytest.mark.parametrize("name", ["fedspm", "fedavg"])
def test_units_that_would_show_a_row_go_back_unchanged_on_both_engines(vectors, tmp_path, name):
    block = {"encoder": "mlp", "dimension": 4, "momentum": 0.0, "batch_size": 2, "steps": 1}  # shows many rows
    changes = {"algorithm": name, "predictor": block, **WITHHOLD}
    expected, _ = in_process(vectors, 1, **changes)
    shown, _ = in_process(vectors, 1, algorithm=name, predictor=block)
    assert not torch.equal(expected["predictor.0.hidden1.weight"], shown["predictor.0.hidden1.weight"])
    torch.set_num_threads(1)
    engine = loop_engine(vectors, algorithm_of(ALGORITHMS[name], small_settings(**changes), vectors), tmp_path)
    assert_same(expected, trained(engine.algorithm, engine, 1))


def test_what_is_withheld_is_what_shows_a_row_and_nothing_else(vectors):
    algorithm = algorithm_of(ALGORITHMS["fedavg"], small_settings(algorithm="fedavg", **WITHHOLD), vectors)
    x = vectors.train[0].x
    shared = {"input.mean": torch.zeros(6), "input.scale": torch.ones(6)}
    shared |= {"predictor.0.hidden1.weight": torch.zeros(3, 6), "predictor.0.hidden1.bias": torch.zeros(3)}
    moved = {  # a row, the mean of all rows, and a row again, smaller and with the other sign
        "predictor.0.hidden1.weight": torch.stack([x[5], x.mean(0) * 90, -0.01 * x[7]]),
        "predictor.0.hidden1.bias": torch.tensor([1.0, 90.0, -0.01]),
    }
    rows = replace(NORTH, x=x, y=vectors.train[0].y)
    kept = withhold_rows(algorithm, rows, shared, Mean(90, **moved)).as_sent()[1]
    for name, value in kept.items():
        assert torch.equal(value[[0, 2]], shared[name][[0, 2]])
        assert torch.equal(value[1], moved[name][1])
