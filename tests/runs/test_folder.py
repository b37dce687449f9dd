"""A run folder that is damaged, or has something strange in it: a sentence, and never half of a model."""

import json
import shutil

import numpy as np
import pytest
import torch

from fedspm import FederatedClassifier
from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.federated.task import Task
from fedspm.report.html import write_report
from fedspm.runs.checkpoints import DIGEST
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.runs.manifest import manifest
from fedspm.serve.export import export
from fedspm.training.loop import train
from small import StopAfter, modes, toy_rows

BLOCK = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 2}
SMALL = {"components": 2, "rounds": 4, "eval_every": 2, "workers": 1, "predictor": BLOCK, "router": BLOCK}


@pytest.fixture(scope="module")
def trained(vectors, tmp_path_factory):
    config = resolve(SMALL)
    algorithm = FedSPM(config, Task.of_federation(vectors))
    run = Run.create(tmp_path_factory.mktemp("runs") / "run", config, manifest(vectors, algorithm, "test"))
    train(config, algorithm, vectors, run=run)
    return run


@pytest.fixture
def run(trained, tmp_path):
    return Run.open(shutil.copytree(trained.path, tmp_path / "run"))


def changed(path, **changes):
    """What a file of JSON said; without its own digest, as runs had it before."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in (content | changes).items() if key != DIGEST}))
    return content


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe\xfd",
        b"{",
        b"[4]",
        b'{"round": "four"}',
        b'{"round": 4}',
        b'{"round": 4, "clients": {}, "seconds": 1}',
    ],
)
def test_a_damaged_line_of_the_metrics_is_named(run, line):
    path = run.path / "metrics.jsonl"
    first, _ = path.read_bytes().splitlines()
    path.write_bytes(first + b"\n" + line + b"\n")
    with pytest.raises(DamagedFile, match=r"metrics\.jsonl is damaged in line 2; delete that line"):
        run.last_metrics()
    path.write_bytes(first)
    assert run.last_metrics()["round"] == 2


def test_across_sites_nobody_knows_the_answers_of_the_whole_system(run):
    (run.path / "config.toml").write_text(resolve({**SMALL, "engine": "flower"}).to_toml())
    (run.path / "metrics.jsonl").write_text('{"round": 4, "clients": {}, "seconds": 1}\n')
    assert run.last_metrics()["round"] == 4


def test_a_line_ends_where_json_says(run):
    """Not at every separator that Unicode has; a client may be called by one."""
    line = run.last_metrics()
    run.record(line | {"worst_client": "one\u2028two"})
    assert run.last_metrics()["worst_client"] == "one\u2028two"


def test_what_lies_beside_the_checkpoints_is_left_alone(run):
    copy = run.path / "checkpoints" / "round-00004.bak"
    shutil.copytree(run.path / "checkpoints" / "round-00004", copy)
    (run.path / "checkpoints" / "round-old").mkdir()
    assert run.last_round() == run.latest().round == 4
    run.save(run.latest(), keep=1)
    assert {path.name for path in copy.parent.iterdir()} == {"round-00004", "round-00004.bak", "round-old"}


def test_a_lock_that_cannot_be_written_is_said(run):
    (run.path / ".lock").unlink(missing_ok=True)
    (run.path / ".lock").mkdir()  # who may write anything is not stopped by a mode
    with pytest.raises(FedSPMError, match=r"\.lock cannot be written: "), run.locked():
        pass


@pytest.mark.parametrize("left", [(), ("north", "south"), ("north", "south", "east")])
def test_a_checkpoint_without_all_clients_is_no_model(run, tmp_path, left):
    path = run.path / "checkpoints" / "round-00004" / "state.json"
    files = json.loads(path.read_text())["clients"]
    changed(path, clients={name: files.get(name, files["west"]) for name in left})
    with pytest.raises(DamagedFile, match=r"state\.json is damaged: its clients are not .*to go back to round-00002"):
        run.model()
    with pytest.raises(DamagedFile, match="its clients are not those of the manifest"):
        export(run, tmp_path / "bundle")
    shutil.rmtree(path.parent)
    assert len(run.model().privates) == 3


def test_across_sites_what_is_private_was_never_here(run):
    (run.path / "config.toml").write_text(resolve({**SMALL, "engine": "flower"}).to_toml())
    changed(run.path / "checkpoints" / "round-00004" / "state.json", clients={})
    assert not run.latest().privates
    with pytest.raises(FedSPMError, match="was trained across sites"):
        run.model()


@pytest.mark.parametrize("file", ["shared.safetensors", "clients/00001-south.safetensors"])
def test_a_bit_that_fell_over_is_noticed(run, file):
    path = run.path / "checkpoints" / "round-00004" / file
    content = bytearray(path.read_bytes())
    content[-7] ^= 16
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=rf"{file} is damaged: its SHA-256 .*to go back to round-00002"):
        run.latest()
    changed(path.parents[file.count("/")] / "state.json", sha256={})  # as runs had it before
    run.latest()


@pytest.mark.parametrize("change", [{"round": None}, {"seconds": "long"}, {"clients": 3}])
def test_a_state_of_another_kind_is_damaged(run, change):
    changed(run.path / "checkpoints" / "round-00004" / "state.json", **change)
    with pytest.raises(DamagedFile, match=r"state\.json is damaged"):
        run.latest()


@pytest.mark.parametrize("change", [{"round": 2}, {"seconds": 1.0}, {"sha256": {}}])
def test_a_state_that_was_changed_is_not_gone_on_with(run, change):
    path = run.path / "checkpoints" / "round-00004" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DamagedFile, match=r"state\.json was changed after it was written: .*to go back to round-00002"):
        run.latest()


def test_a_checkpoint_of_another_round_is_noticed_without_a_digest_too(run):
    changed(run.path / "checkpoints" / "round-00004" / "state.json", round=2)
    with pytest.raises(DamagedFile, match=r"state\.json is of round 2, not of round-00004: it was changed"):
        run.latest()


def test_an_empty_configuration_is_called_empty(run):
    (run.path / "config.toml").write_text("\n")
    with pytest.raises(DamagedFile, match=r"config\.toml is empty; put the settings of this run back"):
        run.resume()


def edited(run, old, new):
    path = run.path / "config.toml"
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))


def test_settings_that_were_changed_are_said(run):
    assert run.changes() == []
    edited(run, "[data]", '# moved to another disk\n[data]\npath = "/elsewhere"')
    assert run.changes() == []
    edited(run, "eval_every = 2", "eval_every = 3")
    (sentence,) = run.changes()
    assert "config.toml were changed since the run was made" in sentence


def test_another_torch_is_said(run, monkeypatch):
    before = torch.__version__
    monkeypatch.setattr(torch, "__version__", "9.9")
    (sentence,) = run.changes()
    assert f"was begun with torch {before}, and this is torch 9.9" in sentence


def test_of_an_older_run_nothing_is_known_and_nothing_is_said(run, monkeypatch):
    content = run.manifest
    del content["config_sha256"], content["versions"]
    (run.path / "manifest.json").write_text(json.dumps(content))
    changed(run.path / "checkpoints" / "round-00004" / "state.json")
    edited(run, "eval_every = 2", "eval_every = 3")
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert run.changes() == []
    assert run.latest().round == 4


@pytest.mark.parametrize("change", [{"shape": 7}, {"clients": None}, {"classes": "ill"}, {"encoders": []}])
def test_a_manifest_of_another_kind_is_damaged(run, change):
    changed(run.path / "manifest.json", **change)
    with pytest.raises(DamagedFile, match=rf"manifest\.json is damaged at one of .*{next(iter(change))}"):
        run.model()


@pytest.fixture
def archives(tmp_path):
    (tmp_path / "data").mkdir()
    for i, name in enumerate(("north", "south")):
        x, y = toy_rows(20, 2.0 * i, False, seed=i)
        np.savez(tmp_path / "data" / f"{name}.npz", x=x, y=y)
    return tmp_path / "data"


def test_what_cannot_be_diagnosed_does_not_begin(archives, tmp_path):
    config = resolve({**SMALL, "algorithm": "fedavg", "diagnose_every": 1, "data": {"name": str(archives)}})
    with pytest.raises(FedSPMError, match="only fedspm and feddrm"):
        Run.begin(tmp_path / "run", config, "test")
    assert not (tmp_path / "run").exists()


def test_data_that_is_gone_is_missed_with_a_hint(archives, tmp_path):
    run, _ = Run.begin(tmp_path / "run", resolve({**SMALL, "data": {"name": str(archives)}}), "test")
    with pytest.raises(FedSPMError, match=r"has no checkpoint yet; train it with: fedspm resume .*/run"):
        run.latest()
    archives.rename(tmp_path / "elsewhere")
    with pytest.raises(
        FedSPMError, match=r"is no longer at .*/data; put it back, or point data\.path in .*config\.toml"
    ):
        run.federation()


def test_a_run_without_a_row_to_evaluate_on_does_not_begin(archives, tmp_path):
    config = resolve({**SMALL, "data": {"name": str(archives), "test_fraction": 0.01}})
    with pytest.raises(FedSPMError, match=r"no client has a row to evaluate on; set a larger data\.test_fraction"):
        Run.begin(tmp_path / "run", config, "test")
    assert not (tmp_path / "run").exists()


def stopped(archives, out, algorithm, after, **settings):
    config = resolve({**SMALL, "algorithm": algorithm, "data": {"name": str(archives)}} | settings)
    run, federation = Run.begin(out, config, "test")
    train(config, run.algorithm(), federation, run=run, callbacks=[StopAfter(after)])
    return run


def test_whoever_goes_on_is_told_what_has_changed_unless_it_was_us(archives, tmp_path, recwarn):
    run = stopped(archives, tmp_path / "run", "fedspm", 2, horizon=5)
    run.extend(5, "more")
    run.resume()
    assert not [each for each in recwarn if "config.toml" in str(each.message)]
    edited(run, "rounds = 5", "rounds = 4")
    with pytest.warns(UserWarning, match="were changed since the run was made"):
        run.resume()


def test_a_run_that_was_killed_before_its_manifest_is_begun_again(archives, tmp_path, monkeypatch):
    config = resolve({**SMALL, "data": {"name": str(archives)}})
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Run, "describe", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        Run.begin(tmp_path / "run", config, "killed")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.toml"]
    for folder, settings in (("run", {"seed": 1}), ("mine", {})):  # another training; a file beside it
        if folder == "mine":
            shutil.copytree(tmp_path / "run", tmp_path / "mine")
            (tmp_path / "mine" / "notes").write_text("")
        with pytest.raises(FedSPMError, match="already exists and is not touched"):
            Run.begin(tmp_path / folder, resolve({**config.to_dict(), **settings}), "test")
    run, _ = Run.begin(tmp_path / "run", config, "again")
    assert run.manifest["command"] == "again"


@pytest.mark.parametrize("algorithm", ["fedbabu", "fedavg-ft", "cluster-fl"])
def test_a_run_that_stops_between_evaluations_is_as_personal_as_one_that_ends_there(archives, tmp_path, algorithm):
    early = stopped(archives, tmp_path / "early", algorithm, 3, horizon=4)
    ended = stopped(archives, tmp_path / "ended", algorithm, None, rounds=3, horizon=4)
    for one, other in zip(early.model().privates, ended.model().privates, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_stop_in_the_last_round_stops_nothing(archives, tmp_path):
    assert stopped(archives, tmp_path / "run", "fedspm", 4).has_sketch()


@pytest.mark.usefixtures("usual_mask")
def test_what_shows_rows_or_holds_heads_is_for_the_owner_alone(archives, tmp_path):
    run = stopped(archives, tmp_path / "run", "fedspm", None)
    write_report(run, run.model(), run.federation())
    export(run, tmp_path / "run" / "bundle")
    written = {name: mode for name, mode in modes(run.path).items() if (run.path / name).is_file()}
    others = {"config.toml", "manifest.json", "metrics.jsonl"}
    assert {written.pop(name) for name in others} == {"644"}
    assert {"report.html", "samples/queries.csv", "bundle/clients/north/node.safetensors"} <= written.keys()
    assert set(written.values()) == {"600"}


def test_a_model_of_an_unfinished_run_is_saved_as_unfinished(archives, tmp_path):
    run = stopped(archives, tmp_path / "run", "fedspm", 3)
    FederatedClassifier.load(run.path).save(tmp_path / "copy")
    assert Run.open(tmp_path / "copy").last_round() == 3
