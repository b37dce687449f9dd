"""The Flower engine in a loop: the same bits as in process, whatever happens to a site."""

import time

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from fedspm.algorithms import ALGORITHMS
from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import FedSPMError, Refused, TooFewSites
from fedspm.deploy.server import gather
from fedspm.engines.flower import wire
from fedspm.engines.flower.handshake import agreed_classes
from fedspm.engines.flower.site import Site
from fedspm.engines.local import LocalEngine
from fedspm.federated.evaluation import evaluate, from_counts
from fedspm.runs.config import resolve
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round
from postbox import algorithm_of, loop_engine
from small import small_settings


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


def test_classes_keep_the_order_in_which_all_sites_list_them():
    """One process keeps that of the data set; sorted heads would start from other numbers."""
    assert agreed_classes([("shirt", "bag"), ("shirt", "bag")]).tolist() == ["shirt", "bag"]
    assert agreed_classes([("shirt", "bag"), ("bag", "coat")]).tolist() == ["bag", "coat", "shirt"]
    assert agreed_classes([(2, 0), (0, 1)]).tolist() == [0, 1, 2]


def test_the_joint_loss_of_feddrm_gives_the_same_bits_too(vectors, tmp_path):
    """Its loss adds over all parameters: the order of names must not matter."""
    settings = small_settings(algorithm="feddrm", options={"joint": True})
    algorithm = algorithm_of(ALGORITHMS["feddrm"], settings, vectors)
    with LocalEngine(vectors, seed=0, workers=1) as local:
        shared, _ = trained(algorithm, local, rounds=2)
    torch.set_num_threads(1)
    assert_same(shared, trained(algorithm, loop_engine(vectors, algorithm, tmp_path), rounds=2)[0])


def test_the_bytes_of_a_round_are_those_of_the_in_process_engine(vectors, tmp_path):
    algorithm = algorithm_of(FedSPM, small_settings(), vectors)
    costs = []
    with LocalEngine(vectors, seed=0, workers=1) as local:
        for engine in (local, loop_engine(vectors, algorithm, tmp_path)):
            one_round(algorithm, engine, begin(algorithm, engine), 0)
            costs.append((engine.traffic.down, engine.traffic.up))
    assert costs[0] == costs[1]


# -- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def spm(vectors):
    torch.set_num_threads(1)
    return algorithm_of(FedSPM, small_settings(rounds=5), vectors)


def test_a_missing_site_keeps_its_row_of_tau_and_rejoins(vectors, tmp_path, spm):
    engine = loop_engine(vectors, spm, tmp_path)
    first = one_round(spm, engine, begin(spm, engine), 0)
    gone = engine.grid.sites.pop(10)
    second = one_round(spm, engine, first, 1)
    assert engine.absent.keys() == {"north"}
    assert "not connected" in engine.absent["north"]
    assert torch.equal(second["tau"][0], first["tau"][0])
    assert not torch.equal(second["tau"][1], first["tau"][1])
    engine.grid.sites[77] = Site(gone.config)  # restarted: a new process under a new number, the same disk
    third = one_round(spm, engine, second, 2)
    assert engine.absent == {}
    assert not torch.equal(third["tau"][0], second["tau"][0])


def test_a_site_that_is_too_busy_to_say_who_it_is_is_asked_again(vectors, tmp_path, spm):
    lost = []
    engine = loop_engine(vectors, spm, tmp_path, lambda step, site, content: None if (step, site) in lost else content)
    shared = one_round(spm, engine, begin(spm, engine), 0)
    back = engine.grid.sites.pop(10)
    lost.append(("join", "north"))
    engine.grid.sites[77] = Site(back.config)
    shared = one_round(spm, engine, shared, 1)
    assert "not connected" in engine.absent["north"]
    lost.clear()
    time.sleep(2 * engine.post.waiting.seconds)
    one_round(spm, engine, shared, 2)
    assert engine.absent == {}


def test_strangers_stop_nobody_and_a_second_node_of_one_name_is_taken_when_the_first_is_gone(vectors, tmp_path, spm):
    engine = loop_engine(vectors, spm, tmp_path)
    shared = one_round(spm, engine, begin(spm, engine), 0)
    extra = Site(engine.grid.sites[10].config.model_copy(update={"name": "extra"}))
    engine.grid.sites |= {70: extra, 71: extra}  # two of them, under one name that is nobody's here
    engine.grid.sites[72] = Site(engine.grid.sites[10].config)  # north, while north is there
    shared = one_round(spm, engine, shared, 1)
    assert engine.absent == {}
    assert engine.nodes["north"] == 10
    del engine.grid.sites[10]
    time.sleep(2 * engine.post.waiting.seconds)
    one_round(spm, engine, shared, 2)
    assert engine.absent == {}
    assert engine.nodes["north"] == 72


def test_two_sites_of_one_name_cannot_begin_a_run(vectors, tmp_path, spm):
    engine = loop_engine(vectors, spm, tmp_path)
    engine.grid.sites[20] = Site(engine.grid.sites[10].config)
    config = resolve({"sites": {"names": list(vectors.names), "wait": 1}})
    with pytest.raises(FedSPMError, match="two sites call themselves 'north'"):
        gather(engine.post, config, print)


def test_a_site_does_not_answer_what_could_single_out_a_row(vectors, tmp_path, spm):
    engine = loop_engine(vectors, spm, tmp_path)
    shared = begin(spm, engine)
    for step in (spm.cache_features, spm.baseline_gradient):
        with pytest.raises(TooFewSites, match="a site does not answer it"):
            engine(step, shared)


def test_restarting_every_site_between_all_rounds_changes_nothing(vectors, tmp_path, spm):
    undisturbed = loop_engine(vectors, spm, tmp_path / "a")
    restarted = loop_engine(vectors, spm, tmp_path / "b")
    expected, shared = begin(spm, undisturbed), begin(spm, restarted)
    for number in range(3):
        expected = one_round(spm, undisturbed, expected, number)
        restarted.grid.sites = {node: Site(site.config) for node, site in restarted.grid.sites.items()}
        shared = one_round(spm, restarted, shared, number)
    assert_same(expected, shared)


def test_a_server_that_goes_back_a_round_takes_its_sites_with_it(vectors, tmp_path, spm):
    """The server dies after its sites did a round that it never saved: the round is done again, to the same bits."""
    engine = loop_engine(vectors, spm, tmp_path)
    first = one_round(spm, engine, begin(spm, engine), 0)
    second = one_round(spm, engine, first, 1)
    expected = one_round(spm, engine, second, 2)
    assert_same(expected, one_round(spm, engine, second, 2))  # ahead by a round
    assert_same(second, one_round(spm, engine, first, 1))  # by two
    assert_same(expected, one_round(spm, engine, second, 2))


def test_a_site_that_lost_a_reply_is_ahead_and_recovers(vectors, tmp_path, spm):
    """The site did its step, the answer never came: it goes on from its newest state, as the tag of the next tells."""
    lost = []
    engine = loop_engine(vectors, spm, tmp_path, lambda step, site, content: None if (step, site) in lost else content)
    shared = one_round(spm, engine, begin(spm, engine), 0)
    lost.append(("maximise", "south"))
    shared = one_round(spm, engine, shared, 1)
    assert "no answer within" in engine.absent["south"]
    lost.clear()
    one_round(spm, engine, shared, 2)
    assert engine.absent == {}


def test_a_round_that_too_few_sites_answer_is_repeated_until_they_are_back(vectors, tmp_path, spm):
    asked = []

    def between(step, site, content):
        asked.append(step)
        return None if site == "west" and asked.count("maximise") <= 3 and step == "maximise" else content

    engine = loop_engine(vectors, spm, tmp_path, between, min_clients=3)
    undisturbed = loop_engine(vectors, spm, tmp_path / "undisturbed")
    expected = one_round(spm, undisturbed, begin(spm, undisturbed), 0)
    assert_same(expected, one_round(spm, engine, begin(spm, engine), 0))
    assert asked.count("maximise") == 6
    engine.grid.sites.clear()
    with pytest.raises(TooFewSites, match="min_clients is 3"):
        engine.begin_round(1)
        spm.server_round(expected, engine)


def test_the_start_needs_everybody(vectors, tmp_path, spm):
    engine = loop_engine(vectors, spm, tmp_path)
    engine.grid.sites.pop(11)
    with pytest.raises(TooFewSites, match=r"start needs all of them .*'south'"):
        begin(spm, engine)


def test_a_site_never_starts_again_by_accident(vectors, tmp_path, spm):
    engine = loop_engine(vectors, spm, tmp_path)
    one_round(spm, engine, begin(spm, engine), 0)
    with pytest.raises(TooFewSites, match="already trained in this run and does not start again"):
        begin(spm, engine)


def test_a_site_refuses_what_it_was_not_configured_for(vectors, tmp_path, spm):
    engine = loop_engine(vectors, spm, tmp_path)
    site = engine.grid.sites[10]
    for change, why in (
        ({"algorithms": ("fedavg",)}, "configured for fedavg, not for 'fedspm'"),
        ({"encoders": ("cnn",)}, "not configured for the predictor encoder 'mlp'"),
        ({"min_count": 50}, "this site's min_count is 50"),
    ):
        engine.grid.sites[10] = Site(site.config.model_copy(update=change))
        with pytest.raises(TooFewSites, match=why):
            begin(spm, engine)
    engine.grid.sites[10] = site
    shared = begin(spm, engine)
    with pytest.raises(Refused, match="no client step 'local_probabilities'"):
        engine(spm.local_probabilities, shared)


def test_damage_at_a_site_is_said_and_the_others_go_on(vectors, tmp_path, spm, capsys):
    engine = loop_engine(vectors, spm, tmp_path)
    shared = one_round(spm, engine, begin(spm, engine), 0)
    for file in engine.grid.sites[12].config.state.glob("*/private-*"):
        file.write_bytes(file.read_bytes()[:100])
    one_round(spm, engine, shared, 1)
    assert "a file of this site cannot be read; see the site's log" in engine.absent["west"]
    assert "is damaged" in capsys.readouterr().err  # where it lies is nobody else's business
    assert engine.absent.keys() == {"west"}


# -- the wire --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_crosses_the_wire_is_what_is_declared(vectors, tmp_path, name):
    """Every message of a run: names, shapes, bytes; down only what the server has, up only what is declared."""
    algorithm = algorithm_of(ALGORITHMS[name], small_settings(algorithm=name), vectors)
    torch.set_num_threads(1)
    engine = loop_engine(vectors, algorithm, tmp_path)
    shared = begin(algorithm, engine)
    for number in range(2):
        shared = one_round(algorithm, engine, shared, number)
    shared = algorithm.prepared(shared, engine)
    counts = engine.count(shared)
    c, d, features, m = algorithm.settings.components, 4, 6, 3
    shapes = {
        "describe": {"count": (features,), "sum": (features,), "square": (features,)},
        "moments": {"count": (), "products": (features, features)},
        "init_responsibilities": {"tau": (c,)},
        "expect": {"tau": (c,)},
        "weigh": {"mass": (c,), "sum": (c, d), "product": (c, d, d)},
        "evaluate": {"rows": (), "right": (), "routed": (m,)},
        "personalise": {},
        "init_private": {},
    }
    private = {name for each in engine.private_states().values() for name in each}
    for way, _, step, content in engine.grid.seen:
        header = dict(content["fedspm"])
        if way == "down":
            sent = set(content) - {"fedspm"}
            assert sent <= (set() if step == "join" else {"shared", "arguments"})
            assert all(wire.tensors_of(content, each) for each in sent)  # an empty record would cost requests
            continue
        if step == "join":
            assert header.keys() == {"tag", "site", "version", "rows", "shape", "classes", "pixels", "columns"}
            assert set(content) == {"fedspm"}
            continue
        assert header.keys() <= {"tag", "site", "rows", "kind", "weight", "from"}
        tensors = wire.to_tensors(content["reply"])
        if step in shapes:
            assert {key: tuple(each.shape) for key, each in tensors.items()} == shapes[step], step
        elif step == "cluster":
            assert {len(tensors["count"]), len(tensors["sum"])} <= {2, 3}
            assert tensors["sum"].shape[1:] == (features,)
        else:
            assert tensors.keys() <= shared.keys()
            assert all(tensors[key].shape == shared[key].shape for key in tensors)
        for key, each in tensors.items():
            assert not set(each.shape) & {90, 120, 150}, f"{step} sends {key} with one entry a row"
        if name in ("fedspm", "feddrm"):
            assert not {key for key in tensors if key.startswith("head")}  # no head ever reaches the server
        assert not set(tensors) & (private - shared.keys())
        assert sum(each.nbytes for each in tensors.values()) <= len(content["reply"]["tensors"].data)
    assert {step for _, _, step, _ in engine.grid.seen} - {"join", "init_private", "personalise"} <= set(
        algorithm.steps
    )
    metrics = from_counts(counts, vectors.names, algorithm.routes)
    model = personalised(algorithm, engine, shared)
    expected = evaluate(model, vectors)
    for key in ("average_accuracy", "routing_accuracy", "worst_client_accuracy", "routing_confusion"):
        assert metrics.get(key) == expected.get(key), key


def test_a_site_misses_a_record_that_was_lost(vectors, tmp_path, spm):
    engine = loop_engine(vectors, spm, tmp_path)
    begin(spm, engine)
    site = next(iter(engine.grid.sites.values()))
    _, _, _, asked = next(each for each in engine.grid.seen if each[0] == "down" and "shared" in each[3])
    del asked["shared"]
    assert wire.header_of(site.answer(asked))["why"] == "the message has no 'shared'"


def test_a_step_that_breaks_is_answered_all_the_same(vectors, tmp_path, spm, monkeypatch, capsys):
    """Flower's SuperNode waits for a reply for ever; what the error says may tell of the rows and stays at the site."""

    def maximise(self, client, shared, tau):
        raise ValueError(f"row 7 of {client.name}")

    engine = loop_engine(vectors, spm, tmp_path)
    shared = begin(spm, engine)
    monkeypatch.setattr(FedSPM, "maximise", maximise)
    with pytest.raises(TooFewSites, match="the step failed with ValueError; see the site's log") as caught:
        one_round(spm, engine, shared, 0)
    assert "row 7" not in str(caught.value)
    assert "row 7 of north" in capsys.readouterr().err
