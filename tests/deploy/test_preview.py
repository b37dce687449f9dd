"""What a data-protection officer sees before and after a run."""

import json

import pytest

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from typer.testing import CliRunner

from fedspm.algorithms.fedspm import FedSPM
from fedspm.cli.app import app
from fedspm.deploy.preview import preview
from fedspm.engines.flower.contract import SiteConfig
from fedspm.engines.flower.ledger import Entry, Ledger
from fedspm.engines.flower.site_data import save_rows
from fedspm.federated.accountant import epsilon
from fedspm.runs.config import resolve
from fedspm.training.evaluation import prepare
from fedspm.training.loop import begin, one_round
from postbox import algorithm_of, loop_engine
from small import toy_rows

BLOCK = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 5}
RUN = {"rounds": 4, "components": 2, "predictor": BLOCK, "router": BLOCK, "sites": {"names": ["north", "south"]}}
WITHHELD = {"withhold_rows": True}
NOISE = {"clip": 1.0, "noise": 8.0}


@pytest.fixture
def folder(tmp_path):
    save_rows(tmp_path / "rows.safetensors", *toy_rows(90, 0.0, False, 0), *toy_rows(30, 0.0, False, 1))
    (tmp_path / "site.toml").write_text('name = "north"\nrows = "rows.safetensors"\nstate = "state"\n')
    return tmp_path


def site(folder, **changes):
    return SiteConfig.read(folder / "site.toml").model_copy(update=changes)


def test_a_preview_has_the_steps_and_bytes_that_a_run_really_sends(folder, vectors):
    config = resolve(RUN | {"privacy": WITHHELD, "rounds": 1, "eval_every": 1, "sites": {"names": list(vectors.names)}})
    found = preview(site(folder), config)
    algorithm = algorithm_of(FedSPM, config, vectors)
    engine = loop_engine(vectors, algorithm, folder / "loop")
    shared = one_round(algorithm, engine, begin(algorithm, engine), 0)
    shared = prepare(algorithm, engine, shared)
    engine.count(shared)
    algorithm.onboarding.sketch(shared, engine)
    entries = engine.grid.sites[10].ledger.entries()
    real = {entry.step: entry.bytes for entry in entries}
    shown = {each.step: each.bytes for each in found.steps}
    assert shown.keys() == real.keys()
    weights = 8  # of a mean, which is sent beside its tensors
    for step, size in real.items():
        if step != "summarise":  # as many clusters as there are rows for
            assert size - shown[step] in (0, weights), step
    often = {each.step: each.times for each in found.steps}
    assert all(sum(entry.step == step for entry in entries) <= often[step] for step in real)
    assert found.epsilon is None
    assert found.refused == []


def test_with_noise_everything_is_noised_and_epsilon_is_told_before(folder):
    config = resolve(RUN | {"privacy": NOISE, "eval_every": 2})
    found = preview(site(folder), config)
    assert {each.step: each.times for each in found.steps} == {"personalise": 2, "expect": 4, "maximise": 4}
    assert all(each.noised for each in found.steps if each.tensors)
    assert found.epsilon == found.epsilon_after == epsilon(8.0, 8, 1e-5)
    ledger = Ledger(folder / "state")
    ledger.append(Entry("before", 1, "update", "round", "a", 100, 4, 8.0))
    assert preview(site(folder), config).epsilon_after == epsilon(8.0, 12, 1e-5)
    ledger.append(Entry("before", 1, "update", "round", "b", 100))
    assert preview(site(folder), config).epsilon_after is None  # something has left without noise


@pytest.mark.parametrize(
    ("own", "changes", "why"),
    [
        ({"max_epsilon": 1.0}, {"privacy": NOISE}, "max_epsilon of site 'north', 1"),
        ({}, {}, "has show_no_row = true"),
        ({"min_steps": 6}, {}, "whose min_steps is 6"),
        ({"algorithms": ("fedavg",)}, {}, "(algorithms)"),
        ({"algorithms": ("fedgmm",)}, {"algorithm": "fedgmm", "privacy": NOISE}, "would leave without noise"),
        ({"name": "east"}, {}, "'east' is not one of the sites"),
    ],
)
def test_a_preview_says_why_a_run_would_be_refused(folder, own, changes, why):
    refused = preview(site(folder, **own), resolve(RUN | changes)).refused
    assert any(why in each for each in refused)


def test_the_commands_have_exit_codes_and_json(folder):
    run = folder / "run.toml"
    run.write_text(
        'rounds = 4\ncomponents = 2\n[sites]\nnames = ["north", "south"]\n[predictor]\nencoder = "mlp"\n'
        '[router]\nencoder = "mlp"\n[privacy]\nwithhold_rows = true\n'
    )

    def called(*words):
        return CliRunner().invoke(app, ["federation", *words])

    shown = called("preview", str(folder / "site.toml"), str(run))
    assert shown.exit_code == 0
    assert "this site would take part" in shown.output
    assert "cluster" in shown.output
    refused = called("preview", str(folder / "site.toml"), str(run), "--set", "predictor.steps=2", "--json")
    assert refused.exit_code == 1
    assert "min_steps" in json.loads(refused.stdout)["refused"][0]
    assert "0 lines" in called("ledger", str(folder / "site.toml")).output
    Ledger(folder / "state").append(Entry("run1", 1, "update", "round", "a", 100, 1, 8.0))
    told = json.loads(called("ledger", str(folder / "site.toml"), "--json").stdout)
    assert told["epsilon"] == epsilon(8.0, 1, 1e-5)
    assert told["left"][0]["bytes"] == 100
    assert "the chain holds" in called("ledger", str(folder / "site.toml")).output


@pytest.mark.parametrize("role", ["predictor", "router"])
def test_a_preview_imports_nothing_that_only_run_toml_names(folder, monkeypatch, role):
    """It showed what would leave, and on the way ran a module of the working directory."""
    (folder / "payload.py").write_text("raise SystemExit('this ran')\n")
    monkeypatch.chdir(folder)
    config = resolve(RUN | {role: BLOCK | {"encoder": "payload:make"}})
    found = preview(site(folder), config)
    assert found.steps == []
    assert f"not configured for the {role} encoder 'payload:make' (encoders)" in found.refused[0]
