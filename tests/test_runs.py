"""A run folder that is damaged, or has something strange in it: a sentence, and never half of a model."""

import json
import shutil

import numpy as np
import pytest
import torch

from fedspm import FederatedClassifier
from fedspm.algorithms.fedspm import FedSPM
from fedspm.config import resolve
from fedspm.errors import DamagedFile, FedSPMError
from fedspm.manifest import manifest
from fedspm.runs import Run, task_of
from fedspm.serve.export import export
from fedspm.training import train
from small import Watcher, toy_rows

BLOCK = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 2}
SMALL = {"components": 2, "rounds": 4, "eval_every": 2, "workers": 1, "predictor": BLOCK, "router": BLOCK}


@pytest.fixture(scope="module")
def trained(vectors, tmp_path_factory):
    config = resolve(SMALL)
    algorithm = FedSPM(config, task_of(vectors))
    run = Run.create(tmp_path_factory.mktemp("runs") / "run", config, manifest(vectors, algorithm, "test"))
    train(config, vectors, algorithm, run, Watcher())
    return run


@pytest.fixture
def run(trained, tmp_path):
    return Run.open(shutil.copytree(trained.path, tmp_path / "run"))


def changed(path, **changes):
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | changes))
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
    train(config, federation, run.algorithm(), run, Watcher(after))
    return run


@pytest.mark.parametrize("algorithm", ["fedbabu", "fedavg-ft", "cluster-fl"])
def test_a_run_that_stops_between_evaluations_is_as_personal_as_one_that_ends_there(archives, tmp_path, algorithm):
    early = stopped(archives, tmp_path / "early", algorithm, 3, horizon=4)
    ended = stopped(archives, tmp_path / "ended", algorithm, None, rounds=3, horizon=4)
    for one, other in zip(early.model().privates, ended.model().privates, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_stop_in_the_last_round_stops_nothing(archives, tmp_path):
    assert stopped(archives, tmp_path / "run", "fedspm", 4).has_sketch()


def test_a_model_of_an_unfinished_run_is_saved_as_unfinished(archives, tmp_path):
    run = stopped(archives, tmp_path / "run", "fedspm", 3)
    FederatedClassifier.load(run.path).save(tmp_path / "copy")
    assert Run.open(tmp_path / "copy").last_round() == 3
