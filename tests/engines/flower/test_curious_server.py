"""Servers that would read rows: what a site answers, when and how often, whatever it is asked."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from fedspm.algorithms import ALGORITHMS, build_algorithm
from fedspm.engines.flower import wire
from fedspm.engines.flower.contract import SiteConfig
from fedspm.engines.flower.ledger import epsilon_spent
from fedspm.engines.flower.site import Site
from fedspm.engines.flower.site_data import save_rows
from fedspm.federated.accountant import epsilon
from fedspm.federated.settings import FASTEST
from fedspm.federated.steps import ATTEMPTS
from fedspm.federated.task import Task
from fedspm.mixture.density_ratio import initial_tilts
from fedspm.mixture.kmeans_init import most_iterations
from fedspm.mixture.model import initial_shared_heads
from fedspm.runs.config import OF_DATA, PRESETS, resolve
from small import small_settings, toy_rows

NAMES, FEATURES = ("north", "south"), 6
BLOCK = {"encoder": "mlp", "momentum": 0.0, "dimension": 4, "batch_size": 32, "steps": 5}
SAFE = {"predictor": BLOCK, "router": BLOCK}
WITHHELD = {"withhold_rows": True}


class Server:
    """Asks one site whatever it likes."""

    def __init__(self, folder, settings, rows, **site):
        save_rows(folder / "rows.safetensors", *rows)
        made = {"name": "north", "rows": str(folder / "rows.safetensors"), "state": folder / "state", "device": "cpu"}
        self.config = SiteConfig(**made | {"algorithms": tuple(ALGORITHMS)} | site)
        self.site = Site(self.config)
        task = Task((FEATURES,), 2, NAMES, (len(rows[1]), len(rows[1])))
        if self.config.show_no_row and settings.privacy.noise < 1:
            settings = settings.model_copy(update={"privacy": settings.privacy.model_copy(update=WITHHELD)})
        self.algorithm = build_algorithm(settings, task)
        known = {"names": NAMES, "counts": task.counts, "shape": task.shape, "classes": ["ill", "well"]}
        self.description = known | {"settings": settings.model_dump(mode="json")}
        self.refusals = []

    def ask(self, step, turn, exchange, shared=None, round=None, run="run1", **arguments):
        """The tensors of a reply, or None: then `refusals` has the reason."""
        header = {"tag": str(wire.Tag(run, turn, exchange)), "step": step, "kept": []}
        header["round"] = max(0, turn - 1) if round is None else round
        if step == "init_private":
            header["description"] = json.dumps(self.description)
        reply = self.site.answer(wire.request(header, shared or {}, arguments))
        if wire.header_of(reply)["kind"] == "refusal":
            self.refusals.append(wire.header_of(reply)["why"])
            return None
        return wire.tensors_of(reply, wire.REPLY)

    def start(self, run="run1"):
        """Enrols the site; what it says of its features, standardised."""
        self.ask("init_private", 0, 0, run=run)
        if self.algorithm.settings.privacy.noise:
            return {"input.mean": torch.zeros(FEATURES), "input.scale": torch.ones(FEATURES)}
        sums = self.ask("describe", 0, 1, run=run)
        if sums is None:
            return None
        mean = sums["sum"] / sums["count"]
        scale = (sums["square"] / sums["count"] - mean.square()).sqrt()
        return {"input.mean": mean.float(), "input.scale": scale.float()}


def found(rows, guesses, tolerance):
    """How many of the rows a guess comes near to, relative to their length."""
    if not guesses:
        return 0
    distance = torch.cdist(torch.as_tensor(rows).double(), torch.stack(guesses).double()).min(1).values
    return int((distance < tolerance * torch.as_tensor(rows).double().norm(dim=1)).sum())


def turning_clusters(server, times=400, runs=1):
    """Two clusters whose border turns by a hair: where a row changes sides, the difference of the sums is that row."""
    guesses, last, replies = [], None, []
    for k, angle in enumerate(np.linspace(0, np.pi, times * runs)):
        run = f"run{k // times}"
        if k % times == 0:
            shared = server.start(run)
            if shared is None or server.ask("moments", 0, 2, shared, run=run, view=torch.tensor(0)) is None:
                break
        u = torch.zeros(FEATURES, dtype=torch.float64)
        u[1], u[2] = np.cos(angle), np.sin(angle)
        centres = 1e-4 * torch.stack([u, -u])
        reply = server.ask("cluster", 0, 3 + k % times, shared, run=run, centres=centres, view=torch.tensor(0))
        if reply is None:
            break
        if last is not None and abs(float(reply["count"][0] - last["count"][0])) == 1:
            guesses.append((reply["sum"][0] - last["sum"][0]) * (reply["count"][0] - last["count"][0]))
        last = reply
        replies.append(reply)
    return guesses, replies


def standardised(rows):
    x = torch.from_numpy(rows[0]).double()
    return (x - x.mean(0)) / x.std(0, correction=0)


NOISY = SAFE | {"privacy": {"clip": 1.0, "noise": 8.0}, "em": {"start": "random"}}


def test_a_server_that_turns_clusters_by_a_hair_reads_no_row(tmp_path):
    """It read 160 of 200 rows of a site that wanted noise, in a run that starts at random."""
    rows = toy_rows(200, 0.0, False, 0)
    server = Server(tmp_path, small_settings(**NOISY), rows, min_noise=8.0)
    guesses, _ = turning_clusters(server)
    assert found(standardised(rows), guesses, 1e-3) == 0
    assert server.refusals == ["the settings of this run do not use the step 'moments'"]


@pytest.mark.parametrize(("components", "runs"), [(40, 1), (3, 10)])
@pytest.mark.parametrize("guarded", [False, True])
def test_a_server_that_turns_clusters_reads_no_row_without_noise_either(tmp_path, components, runs, guarded):
    """One run of many components, or as many runs as a site starts: it read 136 and 113 of 200 rows."""
    rows = toy_rows(200, 0.0, False, 0)
    server = Server(tmp_path, small_settings(**SAFE, components=components), rows, show_no_row=guarded)
    times = most_iterations(components)
    guesses, replies = turning_clusters(server, times, runs)
    assert len(replies) == times * runs
    read = found(standardised(rows), guesses, 1e-3)
    if not guarded:
        assert read > 50
        return
    assert read == 0
    counts = torch.stack([reply["count"] for reply in replies])
    assert len(counts[:, 0].unique()) > 5  # the clusters do turn


@pytest.mark.parametrize("step", ["describe", "moments", "cluster", "init_responsibilities", "evaluate", "summarise"])
def test_with_noise_a_site_answers_nothing_that_would_leave_without(tmp_path, step):
    settings = small_settings(**NOISY | {"em": {"start": "kmeans"}})
    server = Server(tmp_path, settings, toy_rows(60, 0.0, False, 0))
    server.ask("init_private", 0, 0)
    declared = server.algorithm.steps[step]
    turn = {"start": 0, "after training": settings.rounds}.get(declared.when, 1)
    assert server.ask(step, turn, 1, {}) is None
    assert server.refusals == [f"the settings of this run do not use the step {step!r}"]


def test_the_start_has_as_many_requests_as_k_means_needs_also_after_a_restart(tmp_path):
    server = Server(tmp_path, small_settings(**SAFE, components=3), toy_rows(60, 0.0, False, 0))
    shared = server.start()
    server.ask("moments", 0, 2, shared, view=torch.tensor(0))
    centres = torch.randn(40, 2, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def cluster(k, exchange=None):
        return server.ask("cluster", 0, exchange or 3 + k, shared, centres=centres[k], view=torch.tensor(0))

    first = [cluster(k) for k in range(4 * 3 + 10 * 2)]
    assert not server.refusals
    server.site = Site(server.config)
    assert cluster(32) is None
    assert "answered the step 'cluster' 32 times in the start, as often as training needs it" in server.refusals[0]
    again = cluster(7, exchange=50)  # what it has answered, the same: a start that was interrupted is done again
    assert all(torch.equal(value, first[7][name]) for name, value in again.items())
    assert server.ask("describe", 0, 1, {"other": torch.zeros(1)}) is None  # once
    assert server.ask("describe", 0, 1) is not None


def test_steps_are_answered_where_they_belong(tmp_path):
    settings = small_settings(**SAFE, rounds=20, em={"start": "random"}, clients_per_round=1)
    server = Server(tmp_path, settings, toy_rows(60, 0.0, False, 0))
    algorithm = server.algorithm
    shared = server.start() | algorithm.predictor.initial() | algorithm.router.initial()
    shared |= initial_tilts(algorithm.task, 2, algorithm.router.dimension, 0)
    shared |= {"tau": torch.full((2, 2), 30.0)}
    drawn = next(number for number in range(20) if algorithm.participants(number) == [0])
    rests = next(number for number in range(20) if algorithm.participants(number) == [1])
    assert server.ask("expect", drawn + 1, 0, shared) is not None
    for step, turn, round, why in (
        ("expect", 0, None, "belongs to the rounds of this run and is not answered in the start"),
        ("evaluate", 0, None, "belongs to evaluations of this run"),
        ("expect", drawn + 1, drawn + 1, "the request is for round"),
        ("expect", 21, None, "round 20 in turn 21 of a run of 20 rounds"),
        ("expect", rests + 1, None, f"was not drawn for round {rests}"),
        ("local_probabilities", drawn + 1, None, "no client step 'local_probabilities'"),
        ("advance", drawn + 1, None, "do not use the step 'advance'"),
        ("init_responsibilities", 0, None, "do not use the step 'init_responsibilities'"),
        ("personalise", 0, None, "belongs to evaluations of this run"),
        ("summarise", 2, None, "belongs to the end of the last round"),
        ("describe", drawn + 1, None, "belongs to the start"),
    ):
        server.refusals.clear()
        assert server.ask(step, turn, 5, shared, round) is None, step
        assert why in server.refusals[0]
    assert server.ask("describe", 0, 1, shared) is None
    assert "has begun its rounds" in server.refusals[-1]
    assert server.ask("evaluate", 1, 9000, shared) is not None
    assert server.ask("summarise", 20, 9001, shared) is not None


def test_a_repeated_round_may_have_other_contents_but_not_for_ever(tmp_path):
    settings = small_settings(**SAFE, rounds=3, algorithm="fedavg")
    server = Server(tmp_path, settings, toy_rows(60, 0.0, False, 0))
    shared = server.start() | server.algorithm.predictor.initial() | heads()

    def update(turn, k):
        return server.ask("update", turn, 0, shared | {"head.bias": torch.full((1, 2), 0.01 * k)})

    assert all(update(1, k) is not None for k in range(1 + ATTEMPTS))
    assert update(1, 1 + ATTEMPTS) is None
    assert "'update' 21 times in round 0, as often as training needs it" in server.refusals[0]
    assert update(1, 3) is not None  # as before
    assert update(2, 0) is not None  # the next round
    assert update(2, 1) is None  # all that could be spared was spent


# -- small batches ---------------------------------------------------------------------------------------------------


def heads():
    return initial_shared_heads(1, 2, 4, 0)


def layer_changes(server, rounds=30):
    """The change of the first layer's weights over that of its bias: a row, if only one has moved a unit."""
    shared = server.start()
    guesses = []
    if shared is None:
        return guesses
    shared |= server.algorithm.predictor.initial() | heads()
    for number in range(rounds):
        after = server.ask("update", number + 1, 0, shared)
        weight, bias = ((after[name] - shared[name]).squeeze(0) for name in HIDDEN)
        guesses += list(weight[bias != 0] / bias[bias != 0, None])
        shared |= after
    return guesses


HIDDEN = ("predictor.0.hidden1.weight", "predictor.0.hidden1.bias")
NO_LIMITS = {"min_batch": 1, "min_steps": 1, "max_learning_rate": 100.0, "show_no_row": False}


@pytest.mark.parametrize(
    ("change", "limits", "most"),
    [
        ({"batch_size": 1, "steps": 1}, NO_LIMITS, 66),  # what it reads where nothing is refused
        ({"batch_size": 1, "steps": 1}, {}, 0),
        ({"batch_size": 16, "steps": 5}, {}, 0),  # the least that is not refused
        ({"batch_size": 16, "steps": 5, "learning_rate": 0.1}, {}, 0),
    ],
)
def test_a_server_that_asks_for_small_batches_reads_no_row(tmp_path, change, limits, most):
    rows = toy_rows(66, 0.0, False, 0)
    settings = small_settings(algorithm="fedavg", rounds=30, predictor=BLOCK | change)
    server = Server(tmp_path, settings, rows, **limits)
    read = found(standardised(rows), layer_changes(server), 0.01)
    assert read > 20 if most else read == 0


def made_up(kind, draw):
    """A first layer of which a unit fires for one row in twenty, or of which two neighbours differ by a few rows; what
    follows lets every unit matter equally."""
    width = 64
    if kind == "traps":
        weight = torch.nn.functional.normalize(torch.randn(width, FEATURES, generator=draw), dim=1)
        bias = torch.full((width,), -2.0)
    else:  # the same direction, thresholds at quantiles
        weight = torch.nn.functional.normalize(torch.randn(1, FEATURES, generator=draw), dim=1).expand(width, -1)
        bias = -torch.special.ndtri(torch.linspace(0.01, 0.99, width))
    later = {
        "hidden2": torch.eye(width),
        "project": torch.ones(4, width) * torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]),
    }
    shared = {f"predictor.0.{name}.weight": value for name, value in later.items()}
    shared |= {f"predictor.0.{name}.bias": torch.zeros(len(value)) for name, value in later.items()}
    return shared | dict(zip(HIDDEN, (0.1 * weight.contiguous(), 0.1 * bias), strict=True))


def read_from_made_up_weights(server, kind, runs=1, rounds=30):
    draw, guesses = torch.Generator().manual_seed(1), []
    for run in range(runs):
        shared = server.start(f"run{run}")
        for number in range(rounds if shared else 0):
            sent = shared | made_up(kind, draw) | heads()
            after = server.ask("update", number + 1, 0, sent, run=f"run{run}")
            if after is not None:
                weight, bias = ((after[name] - sent[name]).double() for name in HIDDEN)
                if kind == "bins":
                    weight, bias = weight.diff(dim=0), bias.diff()
                guesses += list(weight[bias != 0] / bias[bias != 0, None])
    return guesses


@pytest.mark.parametrize("kind", ["traps", "bins"])
@pytest.mark.parametrize("guarded", [False, True])
def test_a_server_that_makes_up_weights_reads_no_row(tmp_path, kind, guarded):
    """At the smallest batches that are not refused; also in a second run."""
    rows = toy_rows(66, 0.0, False, 0)
    block = BLOCK | {"batch_size": 16, "learning_rate": 0.01}
    settings = small_settings(algorithm="fedavg", rounds=30, predictor=block)
    server = Server(tmp_path, settings, rows, show_no_row=guarded)
    read = found(standardised(rows), read_from_made_up_weights(server, kind, runs=1 + guarded), 0.01)
    assert read == 0 if guarded else read > 10
    if guarded:
        assert any("of this site and is kept back (show_no_row)" in why for why in server.refusals)
        entries = server.site.ledger.entries()
        assert sum(bool(entry.kept_back) and entry.bytes == 0 for entry in entries) == len(server.refusals)


@pytest.mark.parametrize("guarded", [False, True])
def test_noise_that_hides_nothing_is_no_way_around_the_check(tmp_path, guarded):
    """With a millionth of the clip as noise a site looked at no update any more."""
    rows = toy_rows(66, 0.0, False, 0)
    block = BLOCK | {"batch_size": 16, "learning_rate": 0.01}
    noise = {"clip": 10.0, "noise": 1e-8}
    settings = small_settings(algorithm="fedavg", rounds=30, predictor=block, privacy=noise)
    server = Server(tmp_path, settings, rows, show_no_row=guarded)
    draw, guesses = torch.Generator().manual_seed(1), []
    shared = server.start()
    for number in range(30):
        sent = shared | made_up("traps", draw) | heads()
        after = server.ask("update", number + 1, 0, sent)
        if after is not None:
            weight, bias = (after[name].double() for name in HIDDEN)  # changes, where there is noise
            guesses += list(weight[bias != 0] / bias[bias != 0, None])
    read = found(torch.from_numpy(rows[0]).double(), guesses, 0.01)  # by public numbers: as they are
    assert read == 0 if guarded else read > 5


def test_a_run_with_little_noise_must_withhold_rows_too(tmp_path):
    little = {"clip": 1.0, "noise": 0.5}
    server = Server(tmp_path, small_settings(**SAFE), toy_rows(60, 0.0, False, 0))
    server.description["settings"] = small_settings(**SAFE, privacy=little).model_dump(mode="json")
    assert server.ask("init_private", 0, 0) is None
    assert "has show_no_row = true; set privacy.withhold_rows = true" in server.refusals[0]
    server.description["settings"] = small_settings(**SAFE, privacy=little | {"noise": 1.0}).model_dump(mode="json")
    assert server.ask("init_private", 0, 0) is not None


def passing_on(draw, high=20.0):
    """A first layer that hands rows on unharmed, and a second one of which a unit fires for one row in fifty."""
    width, name = 64, "predictor.0."
    first, second = torch.eye(width, FEATURES), torch.zeros(width, width)
    second[:, :FEATURES] = 0.1 * torch.nn.functional.normalize(torch.randn(width, FEATURES, generator=draw), dim=1)
    return {
        f"{name}hidden1.weight": first,
        f"{name}hidden1.bias": high * first.sum(1),  # no row is below zero
        f"{name}hidden2.weight": second,
        f"{name}hidden2.bias": -0.2 - high * second.sum(1),
        f"{name}project.weight": torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]).repeat(1, width),
        f"{name}project.bias": torch.zeros(4),
    }


@pytest.mark.parametrize("guarded", [False, True])
def test_a_server_that_lets_rows_pass_to_the_second_layer_reads_no_row(tmp_path, guarded):
    """It read 29 of 66: only the first layer was looked at."""
    rows = toy_rows(66, 0.0, False, 0)
    settings = small_settings(
        algorithm="fedavg", rounds=30, predictor=BLOCK | {"batch_size": 16, "learning_rate": 0.01}
    )
    server = Server(tmp_path, settings, rows, show_no_row=guarded)
    draw, guesses, shared = torch.Generator().manual_seed(1), [], server.start()
    for number in range(30):
        sent = shared | passing_on(draw) | heads()
        after = server.ask("update", number + 1, 0, sent)
        if after is not None:
            of = [f"predictor.0.hidden2.{kind}" for kind in ("weight", "bias")]
            weight, bias = ((after[name] - sent[name]).double() for name in of)
            guesses += list((weight[bias != 0] / bias[bias != 0, None])[:, :FEATURES] - 20.0)
    read = found(standardised(rows), guesses, 0.01)
    assert read == 0 if guarded else read > 10
    assert any("'predictor.0.hidden2.weight' would show" in why for why in server.refusals) == guarded


def test_an_honest_training_is_not_kept_back(tmp_path):
    settings = small_settings(algorithm="fedavg", rounds=30, predictor=BLOCK | {"batch_size": 16, "learning_rate": 0.1})
    server = Server(tmp_path, settings, toy_rows(66, 0.0, False, 0))
    layer_changes(server)
    assert server.refusals == []


# -- the contract ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"batch_size": 15}, r"predictor.batch_size = 15, too small for site 'north', whose min_batch is 16"),
        ({"steps": 4}, r"predictor.steps = 4, too few for site 'north', whose min_steps is 5"),
        ({"learning_rate": 0.2}, r"predictor.learning_rate = 0.2, too large for site 'north', whose max_learning_rate"),
        ({"learning_rate": 1e-7}, r"predictor.learning_rate = 1e-07, too small for site 'north', whose min_learning_"),
        ({"steps": 0}, None),  # sends what it got
        ({}, None),
    ],
)
def test_a_site_has_limits_of_its_own(tmp_path, change, why):
    settings = small_settings(predictor=BLOCK | change, router=BLOCK)
    server = Server(tmp_path, settings, toy_rows(60, 0.0, False, 0))
    server.ask("init_private", 0, 0)
    assert not server.refusals if why is None else why in server.refusals[0]


def test_a_site_with_fewer_rows_than_its_smallest_batch_takes_no_part(tmp_path):
    server = Server(tmp_path, small_settings(**SAFE), toy_rows(15, 0.0, False, 0))
    assert server.ask("init_private", 0, 0) is None
    assert "batches of this site's 15 rows, too few for site 'north', whose min_batch is 16" in server.refusals[0]


def test_what_is_configured_by_default_is_not_refused():
    usual = SiteConfig(name="a", rows="a", state="a")
    for data in (*OF_DATA, "fashion-sample"):
        for preset in PRESETS:
            config = resolve({"data": {"name": data}, "preset": preset})
            for block in (config.predictor, config.router):
                assert block.batch_size >= usual.min_batch
                assert block.steps >= usual.min_steps
                assert block.learning_rate == "auto" or block.learning_rate <= usual.max_learning_rate
    assert usual.max_learning_rate >= FASTEST  # the highest that auto may be


@pytest.mark.parametrize(
    ("changes", "site", "why"),
    [
        ({"algorithm": "fedavg"}, {"algorithms": ("fedspm",)}, "configured for fedspm, not for 'fedavg' (algorithms)"),
        ({}, {"encoders": ("cnn",)}, "not configured for the predictor encoder 'mlp' (encoders)"),
        ({"wire": {"transforms": ["mask"]}}, {}, "the transform 'mask' of wire.transforms (transforms)"),
        ({"min_count": 5}, {}, "sums over 5 rows, this site's min_count is 10"),
        ({}, {"min_noise": 1.0}, "privacy.noise = 0, this site's min_noise is 1"),
        ({}, {"max_epsilon": 9.0}, "no privacy.noise, and this site has a budget: max_epsilon = 9"),
        (NOISY, {"max_epsilon": 0.5}, "in all runs together, more than the max_epsilon of site 'north', 0.5"),
        (
            {"rounds": 21},
            {"max_rounds": 20},
            "21 rounds for site 'north', which has answered 0 of its max_r",
        ),
        ({"privacy": {}}, {}, "has show_no_row = true; set privacy.withhold_rows = true in the run"),
        (
            {"privacy": {}, "predictor": BLOCK | {"steps": 0}, "router": BLOCK | {"steps": 0}},
            {},
            "differences of the sums that the run's start asks for may show rows",
        ),
        ({}, {"max_starts": 0}, "has answered the start of 0 runs without noise, its max_starts"),
    ],
)
def test_a_run_that_breaks_the_contract_is_refused_with_the_key(tmp_path, changes, site, why):
    server = Server(tmp_path, small_settings(**SAFE), toy_rows(60, 0.0, False, 0), **site)
    server.description["settings"] = small_settings(**SAFE | {"privacy": WITHHELD} | changes).model_dump(mode="json")
    assert server.ask("init_private", 0, 0) is None
    assert why in server.refusals[0]
    assert server.ask("describe", 0, 1) is None


def test_budgets_are_over_all_runs_and_restarts(tmp_path):
    """A server that begins one run after the other gets no more than one that begins a single one."""
    settings = small_settings(algorithm="fedavg", rounds=3, predictor=BLOCK)
    server = Server(tmp_path, settings, toy_rows(60, 0.0, False, 0), max_rounds=7, max_starts=3)
    answered = 0
    for run in range(5):
        server.site = Site(server.config)
        shared = server.start(f"run{run}")
        for turn in range(1, 4) if shared else ():
            sent = shared | server.algorithm.predictor.initial() | heads()
            answered += server.ask("update", turn, 0, sent, run=f"run{run}") is not None
    assert answered == 6
    assert "answered 6 of its max_rounds = 7 in all runs" in server.refusals[0]


def test_a_server_that_begins_many_runs_gets_few_starts(tmp_path):
    server = Server(tmp_path, small_settings(**SAFE), toy_rows(60, 0.0, False, 0))
    begun = [server.start(f"run{run}") is not None for run in range(12)]
    assert begun == [True] * 10 + [False] * 2
    assert "the start of 10 runs without noise, its max_starts" in server.refusals[0]


def test_epsilon_is_a_budget_over_all_runs(tmp_path):
    settings = small_settings(algorithm="fedavg", rounds=3, predictor=BLOCK, privacy={"clip": 1.0, "noise": 4.0})
    most = epsilon(4.0, 7, 1e-5)
    server = Server(tmp_path, settings, toy_rows(60, 0.0, False, 0), max_epsilon=most)
    for run in range(3):
        shared = server.start(f"run{run}") | server.algorithm.predictor.initial() | heads()
        for turn in range(1, 4):
            server.ask("update", turn, 0, shared, run=f"run{run}")
    entries = Site(server.config).ledger.entries()
    assert sum(entry.noised for entry in entries) == 6
    assert epsilon_spent(entries, 1e-5) < most
    again = shared | {"head.bias": torch.ones(1, 2)}  # a repeated round with another content counts as well
    assert server.ask("update", 1, 0, again, run="run1") is not None
    server.refusals.clear()
    assert server.ask("update", 2, 0, again, run="run1") is None
    assert "with this reply ε would be" in server.refusals[0]


@pytest.mark.parametrize("gone", [("ledger.jsonl",), ("ledger.jsonl", "ledger.head")])
def test_a_site_whose_ledger_is_gone_answers_nobody(tmp_path, capsys, gone):
    """Without both files it began anew, with all of its budgets."""
    server = Server(tmp_path, small_settings(**SAFE), toy_rows(60, 0.0, False, 0))
    server.ask("moments", 0, 2, server.start(), view=torch.tensor(0))
    for name in gone:
        (server.config.state / name).unlink()
    for site in (server.site, Site(server.config)):
        server.site = site
        server.refusals.clear()
        assert server.ask("init_private", 0, 0, run="run2") is None
        assert server.refusals == ["a file of this site cannot be read; see the site's log"]
    assert "answers nobody until the file is put back" in capsys.readouterr().err


def test_the_same_request_of_other_rows_is_another_release(tmp_path):
    """It was answered, with other noise, and not counted: two replies for the ε of one."""
    settings = small_settings(algorithm="fedavg", rounds=3, predictor=BLOCK, privacy={"clip": 1.0, "noise": 4.0})
    server = Server(tmp_path, settings, toy_rows(60, 0.0, False, 0), max_epsilon=epsilon(4.0, 4, 1e-5))
    sent = server.start() | server.algorithm.predictor.initial() | heads()
    first = server.ask("update", 1, 0, sent)
    server.site = Site(server.config)
    again = server.ask("update", 1, 0, sent)
    assert all(torch.equal(value, first[name]) for name, value in again.items())
    assert len(server.site.ledger.entries()) == 1
    save_rows(tmp_path / "rows.safetensors", *toy_rows(60, 0.0, False, 1))
    server.site = Site(server.config)
    assert server.ask("update", 1, 0, sent) is not None
    assert sum(entry.noised for entry in server.site.ledger.entries()) == 2


def test_a_site_with_a_changed_ledger_answers_nobody(tmp_path, capsys):
    server = Server(tmp_path, small_settings(**SAFE), toy_rows(60, 0.0, False, 0))
    assert server.start()
    path = server.config.state / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b"describe", b"descrybe"))
    assert server.ask("init_private", 0, 0, run="run2") is None
    assert server.refusals == ["a file of this site cannot be read; see the site's log"]
    assert "answers nobody until the file is put back" in capsys.readouterr().err
