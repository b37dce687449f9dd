"""How replies become one: which are refused, what is shortened, what a client's own rows are."""

import numpy as np
import pytest
import torch

from fedspm.algorithms import ALGORITHMS
from fedspm.algorithms.fedavg import FedAvg
from fedspm.base.errors import FedSPMError, TrainingFailed
from fedspm.data.federation import Federation
from fedspm.engines.local import LocalEngine
from fedspm.federated.replies import Combined, Mean, PerClient
from fedspm.federated.robust import merging
from fedspm.federated.robust.merging import Merging
from fedspm.federated.robust.norm import LONGEST
from fedspm.federated.robust.screening import moved_backwards
from fedspm.federated.steps import Step
from fedspm.federated.task import Task
from fedspm.federated.uploads import Update
from fedspm.testing.liars import LIES, LyingEngine, filled, scaled
from fedspm.training.loop import begin, one_round
from small import small_settings, toy_rows

NAMES = ("a", "b", "c", "d", "e")
STEP = Step("maximise", {"w": Update(), "tilt": Update(own_rows=True)})


def method(rule="norm", names=NAMES, counts=(100,) * 5, **changes):
    settings = small_settings(algorithm="fedavg", robust=rule, **changes)
    return FedAvg(settings, Task((6,), 2, tuple(names), tuple(counts)))


def merged(replies, rule="norm", counts=(100,) * 5, **changes):
    """The mean of these replies, and who was refused."""
    shared = {"w.0": torch.ones(4), "tilt.xi": torch.zeros(5, 2)}
    heard = Merging(method(rule, counts=counts, **changes), STEP, shared)
    for name, (weight, tensors) in replies.items():
        heard.add(name, Mean(weight, **{key: shared[key] + value for key, value in tensors.items()}))
    refused = heard.refuse()
    return heard.result(), refused


def moves(seed=0, **of):
    """A change for every client; those that are given take the place of a random one."""
    draw = torch.Generator().manual_seed(seed)
    replies = {}
    for name in NAMES:
        change = {"w.0": torch.randn(4, generator=draw) / 10, "tilt.xi": torch.randn(5, 2, generator=draw) / 10}
        replies[name] = (float(NAMES.index(name) + 1), change | of.get(name, {}))
    return replies


def test_updates_within_the_bounds_have_the_mean_that_they_always_had():
    plain, norm = (merged(moves(), rule)[0].result() for rule in ("none", "norm"))
    for name, value in plain.items():
        assert torch.equal(value, norm[name]), name


def test_an_update_far_beyond_the_others_is_refused_with_both_lengths():
    found, refused = merged(moves(b={"w.0": torch.full((4,), 50.0)}))
    assert refused.keys() == {"b"}
    assert "its update has the length 100" in refused["b"]
    assert "max_update = 20" in refused["b"]
    assert found.answered == ("a", "c", "d", "e")
    expected = merged({name: reply for name, reply in moves().items() if name != "b"})[0].result()
    assert all(torch.equal(expected[name], value) for name, value in found.result().items())
    assert merged(moves(b={"w.0": torch.full((4,), 50.0)}), "none")[1] == {}


def test_a_client_with_few_rows_may_move_further():
    far = moves(b={"w.0": torch.full((4,), 8.0)})
    counts = (100, 1, 100, 100, 100)
    assert merged(far)[1].keys() == {"b"}
    assert merged(far, counts=counts)[1] == {}


def test_two_clients_cannot_be_told_apart():
    replies = {name: reply for name, reply in moves(b={"w.0": torch.full((4,), 50.0)}).items() if name in "ab"}
    assert merged(replies)[1] == {}


def test_a_long_block_is_shortened_and_keeps_its_direction():
    """Not all together: an encoder may not hide what is done to somebody's row."""
    replies = moves(b={"tilt.xi": torch.tensor([[0.0, 0], [0, 0], [-2.0, 0], [0, 0], [0, 0]])})
    found, refused = merged(replies, max_update=1000)
    assert refused == {}
    others = [reply[1]["tilt.xi"] for name, reply in replies.items() if name != "b"]
    numbers = [i for i, name in enumerate(NAMES) if name != "b"]
    usual = np.median(
        [float(torch.cat([each[:i], each[i + 1 :]]).norm()) for i, each in zip(numbers, others, strict=True)]
    )
    weights = {name: reply[0] for name, reply in replies.items()}
    by_hand = sum(weights[name] * replies[name][1]["tilt.xi"] for name in NAMES if name != "b")
    by_hand = by_hand + weights["b"] * torch.tensor([[0.0, 0], [0, 0], [-LONGEST * float(usual), 0], [0, 0], [0, 0]])
    assert torch.allclose(found.result()["tilt.xi"], by_hand / sum(weights.values()), atol=1e-6)


@pytest.mark.parametrize("rule", ["median", "trimmed", "krum"])
def test_a_clients_own_row_is_its_own_and_the_others_agree_on_the_rest(rule):
    """Everybody pushes every other row by −0.1 and pulls its own by 0.2, which no rule may take for an outlier."""
    push = {name: torch.full((5, 2), -0.1) for name in NAMES}
    for i, name in enumerate(NAMES):
        push[name][i] = 0.2
    replies = {name: (100.0, {"w.0": torch.full((4,), 0.1), "tilt.xi": push[name]}) for name in NAMES}
    found = merged(replies, rule)[0].result()
    assert torch.allclose(found["tilt.xi"], torch.full((5, 2), (0.2 - 4 * 0.1) / 5))
    assert torch.allclose(found["w.0"], torch.full((4,), 1.1))
    liar = push["b"].clone()
    liar[[0, 2, 3, 4]] = -0.3  # pushes the others' rows down, within its bound
    found = merged(replies | {"b": (100.0, replies["b"][1] | {"tilt.xi": liar})}, rule)[0].result()
    assert torch.allclose(found["tilt.xi"], torch.full((5, 2), (0.2 - 4 * 0.1) / 5), atol=0.02)


def test_clients_that_sent_other_tensors_are_judged_by_what_they_sent():
    replies = moves()
    for name in "ab":
        del replies[name][1]["tilt.xi"]
    for rule in ("norm", "median", "trimmed", "krum"):
        found = merged(replies, rule)[0].result()
        assert found.keys() == {"w.0", "tilt.xi"}
        assert all(value.isfinite().all() for value in found.values())


def test_a_mean_with_rows_beside_it_is_averaged_by_the_rule_too():
    shared, step = {"w.0": torch.zeros(2)}, Step("advance", {"w": Update(), "row": Update(apart=True)})
    merging = Merging(method("median"), step, shared)
    for k, name in enumerate(NAMES):
        merging.add(name, Combined(Mean(1, **{"w.0": torch.full((2,), float(k + 1))}), PerClient.of(name)))
    assert merging.refuse() == {}
    answer = merging.result()
    assert answer.mean.result()["w.0"].tolist() == [3.0, 3.0]
    assert answer.answered == NAMES


# -- trainings -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def five():
    train = {
        name: toy_rows(60, shift, False, seed=i) for i, (name, shift) in enumerate(zip(NAMES, range(5), strict=True))
    }
    return Federation.from_arrays(train, None)


def after(federation, liars=None, rounds=2, algorithm="fedspm", **changes):
    """The shared state after some rounds in which some clients lie, and the engine."""
    engine_options = {key: changes.pop(key) for key in ("clients_at_once",) if key in changes}
    built = ALGORITHMS[algorithm](small_settings(algorithm=algorithm, **changes), Task.of_federation(federation))
    options = {"seed": 0, "workers": 1, **engine_options}
    with LyingEngine(federation, liars=liars or {}, **options) as engine:
        shared = begin(built, engine)
        for number in range(rounds):
            shared = one_round(built, engine, shared, number)
    return shared, engine


REFUSED = ("parameters of 9e14", "NaN", "infinity", "weight × 10", "sign flip", "sign flip × 4", "parameters negated",
           "others' γ − 100", "τ beyond n", "τ negative")  # fmt: skip


@pytest.mark.parametrize("lie", REFUSED)
def test_a_gross_lie_is_refused_by_name_and_the_others_go_on(five, lie):
    shared, engine = after(five, {"b": LIES[lie]}, rounds=1)
    assert engine.refused.keys() == {"b"}
    assert engine.absent.keys() == {"b"}
    assert "client 'b', step" in engine.refused["b"]
    assert all(value.isfinite().all() for value in shared.values())
    assert all(value.abs().max() < 100 for name, value in shared.items() if name != "tau")


@pytest.mark.parametrize("lie", [name for name in LIES if name not in REFUSED])
def test_a_lie_within_the_bounds_moves_the_state_by_little_more_than_an_honest_client(five, lie):
    honest, _ = after(five, rounds=1)
    told, engine = after(five, {"b": LIES[lie]}, rounds=1)
    for name, value in told.items():
        if name != "tau":
            assert float((value - honest[name]).norm()) < 5.0, name
    assert engine.refused.keys() <= {"b"}


HONEST = {
    "1x": {},
    "one exchange": {"wire": {"exchanges": 1}, "em": {"start": "random", "hold": 0}},
    "steps as printed": {"em": {"scaled_steps": False, "server_step": 1.0}},
    "fast": {"router": {"encoder": "mlp", "dimension": 4, "momentum": 0.95, "learning_rate": 0.3, "steps": 8}},
    "feddrm": {"algorithm": "feddrm"},
    "fedgmm": {"algorithm": "fedgmm"},
    "joint": {"algorithm": "feddrm", "options": {"joint": True}},
}


@pytest.mark.parametrize("changes", HONEST.values(), ids=HONEST)
def test_local_steps_raise_something_of_the_clients_own_normalisers_and_nothing_of_the_others(
    five, changes, monkeypatch
):
    """−∂Q̃₂ᵢ/∂γ is Σ_j P_j(i', c) ≥ 0 for the others' and adds up to Σ_j (P_j(i) − 1) ≤ 0 over its own."""
    seen = []

    def watched(step, change):
        if "tilt.gamma" not in change.of:  # τ alone
            return None
        seen.append(moved_backwards(step, change))
        gamma = change.of["tilt.gamma"]
        if "options" not in changes:  # the joint loss shrinks its parameters
            others = torch.cat([gamma[: change.index], gamma[change.index + 1 :]])
            assert others.max() <= 1e-6
            assert gamma[change.index].max() >= -1e-6
        return seen[-1]

    monkeypatch.setattr(merging, "moved_backwards", watched)
    _, engine = after(five, rounds=4, robust="norm", **{"algorithm": "fedspm"} | changes)
    assert len(seen) == 20
    assert not any(seen)
    assert engine.refused == {}


def test_an_update_that_is_too_long_in_every_block_gets_the_length_of_the_others():
    honest = {"w.0": torch.tensor([0.1, 0.0, 0.0, 0.0]), "tilt.xi": torch.full((5, 2), 0.1)}
    replies = dict.fromkeys(NAMES[:4], (100.0, honest))
    longer = {name: 10 * value for name, value in honest.items()}
    usual, _ = merged(replies | {"e": (100.0, honest)})
    found, refused = merged(replies | {"e": (100.0, longer)})
    assert refused == {}
    for name, value in usual.result().items():
        torch.testing.assert_close(found.result()[name], value)
    one_block = honest | {"w.0": 10 * honest["w.0"]}  # an unusual block, not a multiplied update
    found, _ = merged(replies | {"e": (100.0, one_block)})
    assert float(found.result()["w.0"][0]) - 1 == pytest.approx((4 * 0.1 + LONGEST * 0.1) / 5)


@pytest.mark.parametrize("algorithm", ["fedspm", "scaffold"])
def test_honest_clients_are_neither_refused_nor_shortened(five, algorithm):
    norm, engine = after(five, algorithm=algorithm, robust="norm")
    none, _ = after(five, algorithm=algorithm, robust="none")
    assert engine.refused == {}
    assert all(torch.equal(value, none[name]) for name, value in norm.items())


@pytest.mark.parametrize("rule", ["norm", "median", "trimmed", "krum"])
def test_groups_half_precision_and_few_clients_a_round_work_with_every_rule(five, rule):
    liars = {"b": scaled(100)}
    alone, _ = after(five, liars, robust=rule)
    together, engine = after(five, liars, robust=rule, clients_at_once=5)
    assert "b" in engine.refused
    for name, value in alone.items():
        assert torch.allclose(value, together[name], atol=1e-3), name
    half, engine = after(five, liars, robust=rule, wire={"precision": "half"}, clients_per_round=4)
    assert all(value.isfinite().all() for value in half.values())
    assert engine.refused.keys() <= {"b"}


def test_of_two_clients_the_one_that_spoils_the_state_is_left_out_and_its_round_undone(five):
    two = Federation.from_arrays({name: toy_rows(60, float(i), False, seed=i) for i, name in enumerate("ab")}, None)
    method = FedAvg(small_settings(algorithm="fedavg"), Task.of_federation(two))
    with LyingEngine(two, liars={"b": filled(9e14)}, seed=0, workers=1) as engine:
        start = begin(method, engine)
        before = dict(engine.privates)
        found = one_round(method, engine, start, 0)
        lied = dict(engine.privates)
    assert engine.refused.keys() == {"b"}
    assert "round 0 was done again without it" in engine.refused["b"]
    with LocalEngine(two, seed=0, workers=1) as engine:  # what a round without b gives
        engine.restore(0, before)
        engine.begin_round(0, [0])
        expected = method.server_round(start, engine)
        assert all(torch.equal(value, found[name]) for name, value in expected.items())
        for client, private in engine.privates.items():
            assert all(torch.equal(value, lied[client][name]) for name, value in private.items())


def test_without_a_rule_a_spoilt_state_stops_the_training_and_blames_nobody(five):
    with pytest.raises(TrainingFailed, match=r'round 0: .* after averaging; .* robust = "norm"') as error:
        after(five, {"b": filled(9e14)}, robust="none")
    assert not any(f"client {name!r}" in str(error.value) for name in NAMES)


def test_a_rule_that_nobody_has_stops_a_training_before_it_begins(five):
    with pytest.raises(FedSPMError, match="there is no rule 'medain'"):
        after(five, robust="medain")
