"""fedspm onboard | remove, as a person would call them."""

import numpy as np
import pytest

from commands import fedspm
from small import toy_rows


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("clients")
    (place / "data").mkdir()
    for i, name in enumerate(("north", "south", "west")):
        x, y = toy_rows(60, 2.0 * i, False, seed=i)
        np.savez((place / "data" if i < 2 else place) / f"{name}.npz", x=x, y=y)
    options = [f"--set={role}.{key}" for role in ("predictor", "router") for key in ("dimension=4", "steps=2")]
    fedspm("train", "--data", "data", "--components", 2, "--rounds", 2, "--out", "run", *options, cwd=place)
    return place


def test_a_client_joins_and_leaves(place):
    said = fedspm("onboard", "run", "--name", "west", "--data", "west.npz", "--sketch", cwd=place).stdout
    assert "west learnt from 42 rows; from the sketch" in said
    assert "of its exact normaliser" in said
    assert "run       run-with-west" in said
    assert "west" in fedspm("evaluate", "run-with-west", cwd=place).stdout
    assert fedspm("route", "run-with-west", "west.npz", cwd=place).stdout.count("answered by west") > 30
    said = fedspm("remove", "run-with-west", "--name", "north", "--out", "less", cwd=place).stdout
    assert "run       less" in said
    assert "answered by north" not in fedspm("route", "less", "data/north.npz", cwd=place).stdout
    assert (place / "less" / "report.html").exists()


def test_a_name_that_looks_like_markup(place):
    said = fedspm("onboard", "run", "--name", "[/x]", "--data", "west.npz", "--out", "marked", cwd=place).stdout
    assert "[/x] learnt from 42 rows" in said
    assert "│ [/x] " in said
    assert "│ [/x] " in fedspm("evaluate", "marked", cwd=place).stdout


def test_a_run_given_as_the_folder_one_is_in(place):
    fedspm("onboard", "run", "--name", "west", "--data", "west.npz", "--out", "three", cwd=place)
    said = fedspm("remove", ".", "--name", "north", cwd=place / "three").stdout
    assert "run       ../three-without-north" in said
    assert "south" in fedspm("evaluate", "three-without-north", cwd=place).stdout


def test_what_is_odd_about_a_client_is_said_once(place):
    x, _ = toy_rows(60, 4.0, False, seed=2)
    np.savez(place / "alike.npz", x=x, y=["ill"] * 60)
    done = fedspm("onboard", "run", "--name", "east", "--data", "alike.npz", "--out", "alike", cwd=place)
    assert done.stderr.count("client 'east' has one class only (ill)") == 1


def test_a_method_without_density_ratios_is_not_asked_to_be_diagnosed(place):
    fedspm("train", "--data", "data", "--algorithm", "fedavg", "--rounds", 1, "--out", "average", cwd=place)
    for run, sentence in (("average", "only fedspm and feddrm"), ("run", "train with --diagnose-every 1")):
        done = fedspm("diagnose", run, cwd=place, check=False)
        assert done.returncode == 1
        assert sentence in done.stderr


def test_bad_input_gets_a_sentence(place):
    for arguments, sentence in (
        (("onboard", "run", "--name", "south", "--data", "west.npz"), "a newcomer cannot be called 'south'"),
        (("onboard", "run", "--name", "east", "--data", "nowhere"), "there is no folder or file"),
        (("remove", "run", "--name", "east"), "has no client 'east'"),
        (("remove", "nowhere", "--name", "east"), "is not a run"),
    ):
        done = fedspm(*arguments, cwd=place, check=False)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr
