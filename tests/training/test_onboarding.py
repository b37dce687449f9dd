"""A client comes to a trained run or leaves it: the right normaliser, nothing else changed, sentences for bad input."""

import json
import shutil

import numpy as np
import pytest
import torch

from fedspm import FederatedClassifier
from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import FedSPMError
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.mixture import kmeans_init
from fedspm.mixture.normalisers import TRAINED
from fedspm.mixture.onboarding import CLUSTERS
from fedspm.mixture.sketch import TABLES, Sketch
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.serve.export import export
from fedspm.training.loop import begin, train
from fedspm.training.membership import onboard, remove
from small import small_settings, toy_rows

CLIENTS = {"north": (0.0, False), "south": (1.5, True), "west": (-1.5, False), "east": (3.0, True)}
BLOCK = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 4}


def trained_on(source, out, **settings):
    common = {"components": 2, "rounds": 8, "workers": 1, "predictor": BLOCK, "router": BLOCK, "em": {"hold": 3}}
    config = resolve(common | {"data": {"name": str(source)}} | settings)
    run, federation = Run.begin(out, config, "a test")
    train(config, run.algorithm(), federation, run=run)
    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three clients' archives in data/, and the newcomer's beside it."""
    place = tmp_path_factory.mktemp("onboarding")
    (place / "data").mkdir()
    for i, (name, how) in enumerate(CLIENTS.items()):
        x, y = toy_rows(120, *how, seed=i)
        x_test, y_test = toy_rows(60, *how, seed=10 + i)
        folder = place / "data" if name != "east" else place
        np.savez(folder / f"{name}.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    return place


@pytest.fixture(scope="module", params=["1x", "cx"])
def run(request, place):
    return trained_on(place / "data", place / f"run-{request.param}", variant=request.param, min_count=4)


@pytest.fixture(scope="module")
def joined(run, place):
    return {
        by_sketch: onboard(
            run,
            "east",
            place / "east.npz",
            run.path.with_name(f"{run.path.name}-{by_sketch}"),
            "x",
            by_sketch=by_sketch,
        )
        for by_sketch in (False, True)
    }


def exact_normaliser(run):
    """−log Σ_ij r_ij exp(ξᵀ h), r_ij = 1 / Σ τ exp(γ + ξᵀ h), of the last client, row by row over everybody's rows"""
    model, federation = run.model(), run.federation()
    shared = {name: model.shared[name].double().numpy() for name in TABLES}
    xi, gamma, tau = (shared[name] for name in TABLES)
    mass = np.zeros(xi.shape[1])
    for part in federation.train:
        h = model.embed(part.x)["router"].detach().double().numpy()
        for row in h:
            ratio = np.array([[xi[i, c] @ row[c % len(row)] for c in range(xi.shape[1])] for i in range(len(xi))])
            mass += np.exp(ratio[-1]) / (tau * np.exp(gamma + ratio)).sum()
    return -np.log(mass), gamma[-1]


def test_gamma_is_the_normaliser_over_everybodys_rows(joined):
    exact, gamma = exact_normaliser(joined[False].run)
    assert np.allclose(gamma, exact, atol=0.01)
    assert joined[False].misfit < 0.01


def test_the_sketch_comes_near_and_says_how_near(joined):
    exact, gamma = exact_normaliser(joined[True].run)
    assert np.abs(gamma - exact).max() < 0.5
    copies = joined[True].run.algorithm().router.copies  # few rows lie near each other in C spaces at once
    assert joined[True].misfit < 0.5 * copies**2
    assert joined[True].sent == 0 < joined[False].sent


def test_queries_reach_the_newcomer_and_are_answered(run, joined):
    for done in joined.values():
        metrics = done.run.last_metrics()
        assert metrics["clients"]["east"]["routing_accuracy"] > 0.8
        assert metrics["clients"]["east"]["accuracy"] > 0.5
        assert metrics["routing_accuracy"] > run.last_metrics()["routing_accuracy"] - 0.1
        assert done.run.task.sample_fraction[-1] == pytest.approx(120 / 480)


def as_served(shared):
    """Without γ as SGD left it: a newcomer's is comparable with normalised ones, and training goes on from these."""
    return {name: value for name, value in shared.items() if name != TRAINED}


def test_nothing_of_the_others_changes(run, joined):
    before = run.latest()
    for done in joined.values():
        after = done.run.latest()
        assert after.shared.keys() == as_served(before.shared).keys()
        for name, value in as_served(before.shared).items():
            assert torch.equal(after.shared[name][: len(value)] if name in TABLES else after.shared[name], value)
        for client, private in before.privates.items():
            assert all(torch.equal(after.privates[client][name], value) for name, value in private.items())
    assert run.last_metrics()["clients"].keys() == {"north", "south", "west"}


def test_a_new_run_is_a_run_like_any_other(joined, tmp_path):
    made = joined[True].run
    assert made.federation().names == ("north", "south", "west", "east")
    assert made.manifest["derived_from"]["run"].endswith(("run-1x", "run-cx"))
    done = export(made, tmp_path / "bundle")
    assert done.clients[-1] == "east"
    files = {path.suffix for path in made.path.rglob("*") if path.is_file()}
    assert files <= {".toml", ".json", ".jsonl", ".safetensors", ".lock", ""}


def test_removed_it_is_never_routed_to_and_nothing_else_changes(run, joined, tmp_path):
    back = remove(joined[False].run, "east", tmp_path / "back", "x")
    assert back.config == run.config
    before, after = run.latest(), back.latest()
    assert before.privates.keys() == after.privates.keys()
    assert all(torch.equal(after.shared[name], value) for name, value in as_served(before.shared).items())
    assert torch.allclose(back.sketch()["mass"], run.sketch()["mass"])
    less = remove(run, "west", tmp_path / "less", "x")
    assert less.config.data.without == ("west",)
    assert less.federation().names == less.task.names == ("north", "south")
    model = less.model()
    assert model.posterior(model.embed(run.federation().test[2].x)).shape[1] == 2
    again = onboard(less, "west", run.config.data.path / "west.npz", tmp_path / "again", "x")
    assert again.run.last_metrics()["clients"]["west"]["routing_accuracy"] > 0.5


def test_the_mass_of_all_components_is_one_on_average(run):
    """In the scale of r = 1 / D whatever the tilts are: so a newcomer's γ is comparable with the others'."""
    model, federation = run.model(), run.federation()
    shared = model.shared
    tau, mass = shared["tau"].double(), 0
    for part in federation.train:
        features = model.embed(part.x)["router"].detach()
        ratio = torch.einsum("ncd,icd->nic", features.expand(-1, 2, -1), shared["tilt.xi"]) + shared["tilt.gamma"]
        total = torch.logsumexp((ratio + tau.log()).flatten(1), 1)
        mass = mass + (ratio.double() - total[:, None, None]).exp().sum(0)
    assert float((tau * mass).sum() / tau.sum()) == pytest.approx(1, abs=1e-5)


# -- what leaves a client ----------------------------------------------------------------------------------------------


def test_an_exchange_brings_a_value_and_its_gradient(vectors):
    algorithm = FedSPM(small_settings(), Task.of_federation(vectors))
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        ask = algorithm.onboarding.everybody(shared, engine).gradient
        draw = torch.Generator().manual_seed(1)
        tilt = {
            "tilt.xi": torch.randn(2, 4, generator=draw).double(),
            "tilt.gamma": torch.randn(2, generator=draw).double(),
        }
        tilt["log_tau"] = torch.tensor([3.0, 4.0]).double()
        said = ask(tilt)
        assert sum(value.numel() for value in said.values()) == 2 * (4 + 1) + 1
        assert set(said) == set(algorithm.steps["baseline_gradient"].uploads)
        for name, moves in (("gamma", "tilt.gamma"), ("xi", "tilt.xi")):
            for index in np.ndindex(*tilt[moves].shape):
                nudged = []
                for step in (1e-5, -1e-5):
                    moved = tilt[moves].clone()
                    moved[index] += step
                    nudged.append(float(ask(tilt | {moves: moved})["value"]))
                assert (nudged[0] - nudged[1]) / 2e-5 == pytest.approx(float(said[name][index]), abs=1e-3)


def test_no_sum_over_few_rows_leaves(vectors):
    algorithm = FedSPM(small_settings(min_count=100), Task.of_federation(vectors))  # north has 90 rows
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        sketch = algorithm.onboarding.sketch(shared, engine)
        assert sketch.count[0].sum() == sketch.mass[0].sum() == 0
        assert sketch.count[1:].sum(1).tolist() == list(vectors.counts[1:])
        ask = algorithm.onboarding.everybody(shared, engine).gradient
        tilt = {"tilt.xi": torch.zeros(2, 4).double(), "tilt.gamma": torch.zeros(2).double()}
        alone = ask(tilt | {"log_tau": torch.full((2,), 100.0).double()})  # all of every row goes to the newcomer
        assert alone["gamma"].sum() == pytest.approx(sum(vectors.counts[1:]))
    rows = torch.randn(83, 3, generator=torch.Generator().manual_seed(0))
    label = kmeans_init.grouped(rows, CLUSTERS, 10, torch.Generator().manual_seed(1))
    assert min(torch.bincount(label)[torch.bincount(label) > 0]) >= 10


def test_a_sketch_of_single_points_is_exact(vectors):
    algorithm = FedSPM(small_settings(), Task.of_federation(vectors))
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        ask = algorithm.onboarding.everybody(shared, engine).gradient
        kept = [engine.privates[name] for name in vectors.names]
        h, total = torch.cat([each["h"] for each in kept]), torch.cat([each["log_total"] for each in kept])
        points = Sketch(torch.ones(1, len(h)).double(), (-total.double()).exp()[None], h.double()[None])
        tilt = {"tilt.xi": torch.ones(2, 4).double(), "tilt.gamma": torch.zeros(2).double()}
        tilt["log_tau"] = torch.zeros(2).double()
        exact, near = ask(tilt), points.gradient(tilt)
        assert all(torch.allclose(exact[name], near[name], rtol=1e-5) for name in exact)


def test_feddrm_and_the_shipped_images(tmp_path):
    """One component, and a convolutional router."""
    block = {"steps": 2, "batch_size": 16}
    run = trained_on(
        "fashion-sample",
        tmp_path / "run",
        algorithm="feddrm",
        rounds=1,
        predictor=block,
        router=block,
        data={"name": "fashion-sample", "clients": 10, "without": ["client-7"]},
    )
    part = left_out(run)
    np.savez(tmp_path / "new.npz", x=part[0], y=part[1])
    done = onboard(run, "client-7", tmp_path / "new.npz", tmp_path / "new", "x")
    assert done.run.task.clients == 10
    assert done.run.last_metrics()["clients"]["client-7"]["rows"] > 0


def left_out(run):
    """Rows of the client that was left out, as an archive has them."""
    config = run.config
    whole = config.model_copy(update={"data": config.data.model_copy(update={"without": ()})}).federation()
    part = whole.train[7]
    return part.x.numpy(), whole.classes[part.y.numpy()]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def once(place):
    return trained_on(place / "data", place / "once", rounds=1)


@pytest.mark.parametrize(
    ("name", "rows", "sentence"),
    [
        ("north", {}, "'north'.*a client of"),
        (" ", {}, "no name"),
        ("new", {"x": np.zeros((40, 5), np.float32)}, r"rows have shape \(5,\).*trained on \(6,\)"),
        ("new", {"y": np.repeat(["ill", "dead"], 20)}, "'dead' does not occur"),
        ("new", {"x": np.zeros((8, 6), np.float32), "y": np.repeat(["ill", "well"], 4)}, "at least 10"),
        ("new", {"x": np.full((40, 6), np.nan, np.float32)}, "not a finite"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(once, tmp_path, name, rows, sentence):
    usual = {"x": np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32), "y": np.repeat(["ill", "well"], 20)}
    np.savez(tmp_path / "rows.npz", **usual | rows)
    with pytest.raises(FedSPMError, match=sentence):
        onboard(once, name, tmp_path / "rows.npz", tmp_path / "out", "x")
    assert not (tmp_path / "out").exists()


def test_other_refusals(once, place, tmp_path):
    with pytest.raises(FedSPMError, match="no client 'nobody'; its clients are north, south, west"):
        remove(once, "nobody", tmp_path / "out", "x")
    with pytest.raises(FedSPMError, match="already exists"):
        remove(once, "west", once.path, "x")
    two = remove(once, "west", tmp_path / "two", "x")
    with pytest.raises(FedSPMError, match="two clients only"):
        remove(two, "south", tmp_path / "one", "x")
    (two.path / "sketch.safetensors").unlink()
    with pytest.raises(FedSPMError, match="no sketch of the baseline"):
        onboard(two, "east", place / "east.npz", tmp_path / "out", "x", by_sketch=True)
    other = trained_on(place / "data", tmp_path / "fedavg", rounds=1, algorithm="fedavg")
    with pytest.raises(FedSPMError, match="fedavg cannot come or go"):
        onboard(other, "east", place / "east.npz", tmp_path / "out", "x")
    noisy = trained_on(place / "data", tmp_path / "noisy", rounds=1, privacy={"clip": 1.0, "noise": 1.0})
    with pytest.raises(FedSPMError, match=r"trained with privacy\.noise"):
        onboard(noisy, "east", place / "east.npz", tmp_path / "out", "x")
    assert not (noisy.path / "sketch.safetensors").exists()
    assert not (tmp_path / "out").exists()


def test_a_newcomer_joins_a_model_that_was_fitted_on_arrays(vectors, place, tmp_path):
    """By its sketch: the rows of the others were never in a file."""
    model = FederatedClassifier(components=2, rounds=4, workers=1, settings={"em.hold": 1}).fit(vectors)
    model.save(tmp_path / "model")
    FederatedClassifier.load(tmp_path / "model").save(tmp_path / "copy")
    east = place / "east.npz"
    for name in ("model", "copy"):
        run = Run.open(tmp_path / name)
        with pytest.raises(FedSPMError, match="was trained on arrays in memory"):
            onboard(run, "east", east, tmp_path / "out", "x")
        done = onboard(run, "east", east, tmp_path / f"{name}-and-east", "x", by_sketch=True)
        assert done.run.task.names == (*vectors.names, "east")
        x, _ = toy_rows(60, *CLIENTS["east"], seed=13)
        posterior = FederatedClassifier.load(done.run.path).route(x)
        assert (posterior.argmax(1) == 3).mean() > 0.8


def test_an_older_model_of_rows_in_memory_has_no_sketch(vectors, place, tmp_path):
    """`fedspm resume`, which would write one, refuses it: the rows are gone."""
    FederatedClassifier(components=2, rounds=1, workers=1).fit(vectors).save(tmp_path / "model")
    (tmp_path / "model" / "sketch.safetensors").unlink()
    with pytest.raises(FedSPMError, match=r"no sketch .*; an older version of FederatedClassifier saved it; fit and"):
        onboard(Run.open(tmp_path / "model"), "east", place / "east.npz", tmp_path / "out", "x", by_sketch=True)


def test_with_the_others_rows_gone_the_sketch_still_does(once, place, tmp_path):
    content = json.loads((once.path / "manifest.json").read_text())
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in once.path.rglob("*"):
        if file.is_file():
            (moved / file.relative_to(once.path)).parent.mkdir(parents=True, exist_ok=True)
            (moved / file.relative_to(once.path)).write_bytes(file.read_bytes())
    (moved / "manifest.json").write_text(json.dumps(content | {"data_fingerprint": "at the sites"}))
    with pytest.raises(FedSPMError, match="not on this machine"):
        onboard(Run.open(moved), "east", place / "east.npz", tmp_path / "out", "x")
    done = onboard(Run.open(moved), "east", place / "east.npz", tmp_path / "out", "x", by_sketch=True)
    assert done.misfit is None
    assert done.run.task.counts[-1] == 120
    assert export(done.run, tmp_path / "bundle").clients[-1] == "east"


@pytest.fixture
def apart(place, tmp_path):
    """A run with data of its own, which may go."""
    data = shutil.copytree(place / "data", tmp_path / "data")
    return trained_on(data, tmp_path / "run"), data


def test_with_the_data_gone_the_sketch_still_does(apart, place, tmp_path):
    run, data = apart
    data.rename(tmp_path / "elsewhere")
    with pytest.raises(FedSPMError, match="is no longer at"):
        onboard(run, "east", place / "east.npz", tmp_path / "out", "x")
    with pytest.warns(UserWarning, match="not evaluated: the data of .* is no longer at"):
        done = onboard(run, "east", place / "east.npz", tmp_path / "out", "x", by_sketch=True)
    assert done.run.task.names[-1] == "east"
    with pytest.warns(UserWarning, match="not evaluated"):
        assert remove(run, "west", tmp_path / "less", "x").task.names == ("north", "south")


def test_who_left_may_take_the_rows_along(apart, tmp_path):
    run, data = apart
    less = remove(run, "west", tmp_path / "less", "x")
    before = less.federation()
    (data / "west.npz").unlink()
    assert less.federation().fingerprint == before.fingerprint
    with pytest.raises(FedSPMError, match="there is no client 'west'"):  # of one that begins, it is a slip
        less.config.federation()
