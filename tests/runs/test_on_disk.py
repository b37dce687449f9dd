"""What is on the disk, and when; what a site keeps; the clock; the order of answers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import DamagedFile, TrainingFailed
from fedspm.base.files import UMASK, folder_atomically, write_atomically
from fedspm.engines.flower.site_data import save_rows
from fedspm.engines.flower.site_store import REDONE, Store
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.runs.checkpoints import Checkpoint, checkpoint_folders, write_checkpoint
from fedspm.runs.folder import Run
from fedspm.training.clock import Clock
from fedspm.training.loop import begin, one_round
from small import modes, small_settings

# -- files -------------------------------------------------------------------------------------------------------------


def test_what_is_in_a_folder_is_on_the_disk_before_its_name_and_its_name_after(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append(os.fstat(handle).st_ino), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append("renamed"), replace(old, new)))
    with folder_atomically(tmp_path / "round-1") as folder:
        (folder / "clients").mkdir()
        for name in ("a", "clients/b"):
            (folder / name).write_text(name)
    renamed = done.index("renamed")
    for file in ("round-1", "round-1/a", "round-1/clients", "round-1/clients/b"):
        assert (tmp_path / file).stat().st_ino in done[:renamed], file
    assert tmp_path.stat().st_ino in done[renamed:]


def test_a_folder_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path):
    for content in ("old", "new"):
        with folder_atomically(tmp_path / "bundle") as folder:
            (folder / content).write_text(content)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["bundle", "bundle/new"]


def test_a_file_may_be_read_by_whom_the_mask_lets(tmp_path):
    write_atomically(tmp_path / "report.html", "for everybody")
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o666 & ~UMASK
    with folder_atomically(tmp_path / "bundle"):
        pass
    assert (tmp_path / "bundle").stat().st_mode & 0o777 == 0o777 & ~UMASK


@pytest.mark.usefixtures("usual_mask")
def test_what_is_private_may_be_read_by_nobody_else_from_its_first_byte(tmp_path, monkeypatch):
    seen, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (seen.append(os.fstat(handle).st_mode & 0o777), fsync(handle)))
    write_atomically(tmp_path / "rows", "mine", private=True)
    assert seen == [0o600]
    write_atomically(tmp_path / "report", "everybody's")
    assert modes(tmp_path) == {"rows": "600", "report": "644"}


@pytest.mark.usefixtures("usual_mask")
def test_a_private_folder_is_closed_before_it_has_its_name(tmp_path, monkeypatch):
    seen, replace = [], os.replace
    monkeypatch.setattr(
        os, "replace", lambda old, new: (seen.append((modes(old), old.stat().st_mode)), replace(old, new))
    )
    with folder_atomically(tmp_path / "bundle", private=True) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "clients").mkdir()
        (folder / "clients" / "head").write_text("private")
    ((inside, itself),) = seen
    assert inside == modes(tmp_path / "bundle") == {"clients": "700", "clients/head": "600"}
    assert itself & 0o777 == 0o700


@pytest.mark.usefixtures("usual_mask")
def test_private_states_and_rows_are_private_on_the_disk(tmp_path):
    tensors = {"a": torch.zeros(1)}
    write_checkpoint(tmp_path, Checkpoint(1, 0.0, tensors, {"north": tensors}), keep=1)
    (tmp_path / "site").mkdir()
    filled(tmp_path / "site", (1, 0)).keep_shared(1, tensors)
    save_rows(tmp_path / "site" / "rows.safetensors", np.zeros((2, 3)), ["ill", "well"])
    Run(tmp_path).save_sketch(tensors)
    written = {name: mode for name, mode in modes(tmp_path).items() if (tmp_path / name).is_file()}
    assert len(written) == 7  # shared, private and state.json; private, shared and rows of the site; the sketch
    assert set(written.values()) == {"600"}


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_round_that_is_evaluated_again_has_one_line(tmp_path):
    run = Run(tmp_path)
    for number, value in ((1, "a"), (2, "b"), (3, "c"), (2, "d")):
        run.record({"round": number, "value": value}, "diagnostics.jsonl")
    assert [(line["round"], line["value"]) for line in run.diagnostics()] == [(1, "a"), (2, "d")]


KILLED = """
import os, pathlib, signal, sys
from fedspm.base.files import folder_atomically, write_atomically
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
path = pathlib.Path(sys.argv[1])
if path.suffix:
    write_atomically(path, "half of it")
with folder_atomically(path) as folder:
    (folder / "a").write_text("half of it")
"""


def test_half_a_file_and_half_a_checkpoint_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "checkpoints" / "round-00001").mkdir(parents=True)
    kept = [".my.notes.txt", ".metrics.jsonl.swp", ".config.toml.12-backup.fedspm-partial", ".lock", "metrics.jsonl"]
    kept += [f".bundle.{os.getppid()}-abcdefgh.fedspm-partial"]  # its writer lives
    kept += ["checkpoints/.round-00002.mine", "checkpoints/round-00001/a"]
    for name in kept:
        (tmp_path / name).write_text("")
    before = set(tmp_path.rglob("*"))
    for name in ("metrics.jsonl", "checkpoints/round-00002"):
        killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / name], check=False)
        assert killed.returncode == -signal.SIGKILL
    left = {
        path.relative_to(tmp_path).parent
        for path in set(tmp_path.rglob("*")) - before
        if path.parent in before or path.parent == tmp_path
    }
    assert left == {Path(), Path("checkpoints")}
    Run(tmp_path).remove_leftovers()
    assert set(tmp_path.rglob("*")) == before


def test_the_newest_checkpoints_are_kept(tmp_path):
    for number in (2, 4, 6, 8):
        write_checkpoint(tmp_path, Checkpoint(number, 0.0, {"a": torch.zeros(1)}, {}), keep=2)
    assert [folder.name for folder in checkpoint_folders(tmp_path)] == ["round-00006", "round-00008"]


# -- the clock ---------------------------------------------------------------------------------------------------------


def test_the_clock_counts_training_alone(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def passes(seconds):
        now[0] += seconds

    clock = Clock(50.0, 10)  # ten rounds were done in 50 seconds
    passes(4)
    with clock.paused():
        passes(1000)
    passes(2)
    assert clock.stop(12) == {"seconds": 56.0, "seconds_per_round": 3.0}
    passes(1000)  # an evaluation
    clock.start()
    passes(8)
    assert clock.seconds() == 64.0
    assert clock.stop(13) == {"seconds": 64.0, "seconds_per_round": 8.0}


# -- a site's disk -----------------------------------------------------------------------------------------------------


def filled(folder, *places):
    store = Store(folder)
    for place in places:
        store.keep(place, {"at": torch.tensor(place)})
    return store


def test_a_site_keeps_the_end_of_its_last_turns(tmp_path):
    store = filled(tmp_path, *((turn, exchange) for turn in range(1, 7) for exchange in (0, 1)))
    assert store.places() == [*((turn, 1) for turn in range(6 - REDONE, 6)), (6, 0), (6, 1)]
    assert store.before((6, 1))[0] == (6, 0)
    assert store.before((6, 0))[1]["at"].tolist() == [5, 1]


def test_what_a_server_that_went_back_has_undone_is_gone(tmp_path):
    store = filled(tmp_path, (1, 0), (1, 1), (2, 0), (2, 1))
    store.keep((2, 0), None)
    assert store.places() == [(1, 1)]
    store.keep((9, 0), None)
    assert store.places() == [(1, 1)]  # however old: there is no other


def test_a_private_state_under_the_name_of_another_is_refused(tmp_path):
    store = filled(tmp_path, (1, 0))
    store._file((1, 0)).rename(store._file((2, 0)))
    with pytest.raises(DamagedFile, match="is tagged 1/0: it was renamed or copied"):
        store.before((3, 0))


def test_what_the_server_sent_in_another_turn_is_not_taken_for_this_ones(tmp_path):
    store = Store(tmp_path)
    store.keep_shared(4, {"a": torch.ones(1)})
    assert store.shared(4).keys() == {"a"}
    assert store.shared(5) == {}


# -- rounds ------------------------------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_the_questions(vectors):
    with LocalEngine(vectors, seed=0, workers=2) as engine:
        assert list(engine.map(lambda i: i * i, range(50))) == [i * i for i in range(50)]


def test_a_state_that_no_round_can_follow_is_refused(vectors, monkeypatch):
    algorithm = FedSPM(small_settings(), Task.of_federation(vectors))
    broken = {"tilt.xi": torch.full((3, 2, 4), torch.nan)}
    monkeypatch.setattr(algorithm, "server_round", lambda shared, exchange: shared | broken)
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        with pytest.raises(TrainingFailed, match=r"round 2: tilt\.xi is not finite after averaging"):
            one_round(algorithm, engine, shared, 2)
