"""Measurements: what they count, on data small enough to be quick."""

import json

import pytest
import torch

from commands import fedspm
from fedspm import bench
from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import FedSPMError
from fedspm.bench import serving
from fedspm.bench.accuracy import Watch, bench_accuracy, note
from fedspm.bench.measure import alternated, ratio
from fedspm.bench.peers import Size, bench_peers, figures
from fedspm.bench.round import recorded
from fedspm.bench.scale import exponent, measure
from fedspm.cli.bench import WHAT, parse_accuracies, show_accuracy, show_peers
from fedspm.federated.task import Task
from fedspm.mixture.e_step import AUDITED
from small import small_settings


def test_sides_take_turns_after_a_warm_up():
    calls = []
    seconds = alternated({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2, times=2)
    assert "".join(calls) == "aabb" * 3
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2}


def test_the_ratio_is_the_median_of_neighbours():
    assert ratio([1.0, 20.0, 3.0], [1.0, 10.0, 2.0]) == 1.5


def test_the_exponent_of_a_power_law():
    sizes = [{"work": n, "cost": 3 * n**1.25} for n in (8, 32, 1000)]
    assert exponent(sizes, "work", "cost") == pytest.approx(1.25, abs=1e-3)
    assert exponent([{"work": 5, "cost": 1}, {"work": 5, "cost": 9}], "work", "cost") is None


def test_scale_measures_a_round_with_many_clients():
    settings = {"algorithm": "fedavg", "data": {"name": "fashion-sample"}}
    found = measure({"settings": settings, "clients": 40, "rows": 1000, "repeats": 1})
    assert found["clients"] == 40
    assert found["rows"] == pytest.approx(700, abs=20)
    assert found["seconds"] > 40 * found["idle_ms_a_client"] / 1000 > 0
    assert found["peak_mb"] > 100


def test_route_is_measured_from_the_command_line():
    result = json.loads(fedspm("bench", "route", "--data", "fashion-sample", "--repeats", 1, "--json").stdout)
    assert [each["batch"] for each in result["batches"]] == [1, 4, 16, 64, 256, 1024]
    assert all(each["rows_per_second"] > 0 and each["of_bare"] > 0 for each in result["batches"])
    assert fedspm("bench", "nothing", check=False).returncode == 1


def test_a_round_is_held_against_bare_work_alone_and_in_processes():
    less = ["--set", "em.e_step=incremental", "--set", "predictor.steps=2", "--set", "router.steps=2"]
    result = json.loads(fedspm("bench", "round", "--data", "fashion-sample", "--repeats", 1, *less, "--json").stdout)
    workers = result["workers"]
    sides = ["bare", "one worker", f"{workers} workers", f"bare, {workers} processes"]
    assert list(result["median_seconds"]) == sides
    assert all(seconds > 0 for seconds in result["median_seconds"].values())
    assert result["workers_of_processes"] > 0
    audited = 8 * 2 * AUDITED  # clients, encoders, rows; not the exact E-step that an incremental one begins with
    assert result["passes"]["forward"] == audited
    assert result["passes"]["with_backward"] > 0
    assert result["passes"]["redundant"] == 0
    assert list(result["median_cpu_seconds"]) == ["bare", "one worker"]
    assert fedspm("bench", "peers", *less, check=False).returncode == 1


def test_a_pass_over_the_same_rows_with_the_same_parameters_is_redundant(vectors):
    algorithm = FedSPM(small_settings(), Task.of_federation(vectors))
    state, x = algorithm.predictor.initial(), torch.randn(4, 6)
    moved = {name: value + 1 for name, value in state.items()}
    with recorded() as passes:
        algorithm.predictor(state, x)
        algorithm.predictor(state, x, training=True)  # with gradients: another batch may hold the same rows
        algorithm.predictor(moved, x)
        algorithm.predictor(state, x[:2])
        algorithm.predictor(state, x.clone())
    assert [each.again for each in passes] == [False, False, False, False, True]


def test_time_to_accuracy_stops_when_all_is_reached_and_says_what_is_not(capsys):
    small = {"data": {"name": "fashion-sample", "clients": 2}, "predictor": {"steps": 2, "batch_size": 16}}
    settings = {**small, "rounds": 2}
    result = bench_accuracy(settings, targets=[0.999, 0.01], methods=["fedavg"], peers=[], size=Size(2, 16, 8))
    reached = result["methods"]["fedavg"]["reached"]
    assert list(reached) == ["0.01", "0.999"]
    assert reached["0.01"]["rounds"] == 1
    assert reached["0.01"]["cpu_seconds"] > result["methods"]["fedavg"]["start_cpu_seconds"]
    assert reached["0.999"] is None
    assert list(result["peers"]) == ["bare", "ours"]
    show_accuracy(result)
    assert "not reached" in capsys.readouterr().out
    watch = Watch([0.5, 0.7])
    note(watch.reached, 0.6, 3, 9.0)
    note(watch.reached, 0.8, 4, 12.0)
    assert watch.reached == {"0.5": {"rounds": 3, "cpu_seconds": 9.0}, "0.7": {"rounds": 4, "cpu_seconds": 12.0}}
    with pytest.raises(FedSPMError, match="between 0 and 1"):
        bench_accuracy(settings, targets=[60])
    with pytest.raises(FedSPMError, match="with commas"):
        parse_accuracies("high")


def test_sides_of_peers_do_the_same_job_in_turns(capsys):
    result = bench_peers("fashion-sample", 1, peers=(), sizes={"training": Size(2, 16, 8)})
    job = json.loads(json.dumps(result))["jobs"]["training"]
    ours, several = [name for name in job["sides"] if name != "bare"]
    assert job["sides"][ours]["accuracy"] == job["sides"][several]["accuracy"]
    assert all(side["start"]["cpu_seconds"] > side["median"]["cpu_seconds"] > 0 for side in job["sides"].values())
    assert job["sides"]["bare"]["over_bare"] == {"seconds": 1, "cpu_seconds": 1}
    show_peers(result)
    assert "8 clients, 2 steps of 16 rows each" in " ".join(capsys.readouterr().out.split())


def test_peers_are_measured_against_ours():
    def side(round, more):
        values = {"seconds": [round, 9 * round, round], "cpu_seconds": [round / 2] * 3}
        return values | {"start": dict.fromkeys(values, more), "beyond_bare": dict.fromkeys(values, more)}

    found = figures(
        {
            "training": {"sides": {"ours": side(1.0, 0), "ours, 2 workers": side(0.5, 0), "pfl": side(2.0, 0)}},
            "exchange": {"sides": {"ours": side(1.0, 0.5), "flower": side(9.0, 10.0)}},
        },
        workers=2,
    )
    assert {name: each["seconds"] for name, each in found.items()} == {
        "pfl over ours: a round": 2,
        "pfl over ours, 2 workers: a round": 4,
        "flower over ours: start": 20,
        "flower over ours: beyond_bare": 20,
    }


def test_every_measurement_is_one_call():
    assert {name.removeprefix("bench_") for name in bench.__all__} == set(WHAT)
    settings = {"algorithm": "fedavg", "data": {"name": "fashion-sample"}, "predictor": {"steps": 2}}
    result = bench.bench_profile(settings, repeats=1)
    assert {"predictor, forward", "predictor, backward", "averaging", "everything else"} <= result["parts"].keys()
    assert sum(result["parts"].values()) == pytest.approx(result["cpu_seconds"], abs=0.01)
    assert result["checkpoint_cpu_seconds"] > 0
    route = bench.bench_route(settings, 1, sizes=[4])
    assert [each["batch"] for each in route["batches"]] == [4]


def test_serving_is_measured_against_the_bare_pass(tmp_path, monkeypatch):
    data = ["--clients", 2, "--rounds", 1, "--components", 1, "--set", "predictor.steps=1", "--set", "router.steps=1"]
    fedspm("train", *data, "--out", tmp_path / "run")
    monkeypatch.setattr(serving, "LOADS", ((8, 2),))
    result = bench.bench_serving(tmp_path / "run", repeats=1, seconds=1)
    (load,) = result["loads"]
    assert load["failed"] == 0 < load["requests"], load["why"]
    assert load["cpu_ms_an_image"] > 0
    assert load["bare"]["cpu_ms_an_image"] > 0
    assert fedspm("bench", "serving", check=False).returncode == 1  # of which run?
