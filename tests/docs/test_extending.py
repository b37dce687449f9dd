"""docs/extending.md: the package that it walks through is installed and trained with."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commands import fedspm

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
NAMES = ("fedmedian", "patches", "digits", "top_tenth")
SMALL = ["--clients", 3, "--rounds", 2, "--workers", 1, "--set", "predictor.steps=2", "--set", "router.steps=2"]


def installed(package: Path, where: Path) -> dict[str, str]:
    """The environment of a process that finds a package, installed into a folder of its own."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        where,
        package,
    ]
    subprocess.run(list(map(str, pip)), check=True)
    paths = filter(None, [str(where), os.environ.get("PYTHONPATH")])
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture(scope="module")
def with_plugin(tmp_path_factory):
    return installed(EXAMPLE, tmp_path_factory.mktemp("site"))


@pytest.mark.parametrize("algorithm", ["fedmedian", "fedspm"])
def test_a_plugin_is_found_by_name_and_trains(with_plugin, tmp_path, algorithm):
    out = tmp_path / "run"
    encoders = ["--set", "predictor.encoder=patches", "--set", "router.encoder=patches"]
    data = ["--algorithm", algorithm, "--data", "digits"]
    fedspm("train", *data, *encoders, *SMALL, "--out", out, env=with_plugin)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["shape"] == [3, 8, 8]
    assert manifest["encoders"]["predictor"]["parameters"] == 3 * 16 * 16 + 16 + 16 * 4 * 32 + 32
    names = ["patches", "digits"] + ["fedmedian"] * (algorithm == "fedmedian")
    for missing in names:  # whatever the folder names from outside has to be allowed, one by one
        others = [part for name in names if name != missing for part in ("--allow", name)]
        refused = fedspm("resume", out, *others, env=with_plugin, check=False)
        assert refused.returncode == 1
        assert f"--allow {missing}" in refused.stderr
    fedspm("resume", out, *(part for name in names for part in ("--allow", name)), env=with_plugin)


def test_the_plugins_median_is_the_median(with_plugin):
    code = """
import torch
from fedspm.algorithms import build_algorithm
from fedspm.federated.replies import PerClient
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
method = build_algorithm(Settings(algorithm="fedmedian"), Task((4,), 2, ("a", "b", "c"), (9, 9, 9)))
shared = method.predictor.initial() | {"head.weight": torch.zeros(1, 2, 32), "head.bias": torch.zeros(1, 2)}
rows = PerClient({c: {k: torch.full_like(v, n) for k, v in shared.items()} for c, n in zip("abc", (1.0, 1e9, 2.0))})
assert all((value == 2).all() for value in method.server_round(shared, lambda step, shared: rows).values())
"""
    done = subprocess.run([sys.executable, "-c", code], env=with_plugin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_plugins_transform_gives_the_same_bits_in_process_and_across_sites(with_plugin, tmp_path):
    code = """
import sys
from pathlib import Path
import torch
from fedspm import Federation
from fedspm.algorithms import build_algorithm
from fedspm.engines.flower.site import Site
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.training.loop import begin, one_round
from postbox import loop_engine
from small import small_settings, toy_rows
torch.set_num_threads(1)
rows = {name: toy_rows(90, shift, False, 0) for name, shift in (("north", 0.0), ("south", 1.5))}
federation = Federation.from_arrays(rows)
settings = small_settings(algorithm="fedavg", wire={"transforms": ["top-tenth"]})
method = build_algorithm(settings, Task.of_federation(federation))
states = []
with LocalEngine(federation, seed=0, workers=1) as local:
    for engine in (local, loop_engine(federation, method, Path(sys.argv[1]))):
        start = begin(method, engine)
        states.append(one_round(method, engine, start, 0))
assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
moved = torch.cat([(states[0][name] != start[name]).flatten() for name in method.weights(start)])
assert 0.05 < moved.double().mean() < 0.25, moved.double().mean()  # a tenth of every client's entries
site = next(iter(engine.grid.sites.values()))
description = engine.description
site._taking_part(description, "other")
wary = Site(site.config.model_copy(update={"transforms": ()}), "")
try:
    wary._taking_part(description, "other")
except Exception as error:
    why = "this site is not configured for the transform 'top-tenth' of wire.transforms (transforms)"
    assert str(error) == why, error
else:
    raise AssertionError("a site took part with a transform that it does not name")
"""
    pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")
    paths = os.pathsep.join([with_plugin["PYTHONPATH"], str(ROOT / "tests" / "support")])
    command, environment = [sys.executable, "-c", code, str(tmp_path)], with_plugin | {"PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_unknown_names_list_what_plugins_offer(with_plugin, tmp_path):
    for arguments, known in (
        (["--algorithm", "fedmedia"], "fedmedian"),
        (["--data", "digit"], "digits"),
        (["--set", "predictor.encoder=patch"], "patches"),
        (["--set", "wire.transforms=top"], "top-tenth"),
    ):
        refused = fedspm("train", *arguments, "--out", tmp_path / "run", env=with_plugin, check=False)
        assert refused.returncode == 1
        assert known in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_plugin_that_cannot_be_imported_is_named(tmp_path):
    package = tmp_path / "broken"
    (package / "src" / "broken").mkdir(parents=True)
    (package / "src" / "broken" / "__init__.py").write_text("import nothing_of_that_name\n")
    (package / "pyproject.toml").write_text(
        (EXAMPLE / "pyproject.toml")
        .read_text()
        .replace("fedspm-example", "broken")
        .replace("fedspm_example.fedmedian:FedMedian", "broken:Method")
    )
    environment = installed(package, tmp_path / "site")
    refused = fedspm("train", "--algorithm", "fedmedian", "--out", tmp_path / "run", env=environment, check=False)
    assert refused.returncode == 1
    assert "'fedmedian' of broken (broken:Method) cannot be loaded" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_page_shows_the_files_as_they_are():
    page = (ROOT / "docs" / "extending.md").read_text()
    for file in ("pyproject.toml", *(f"src/fedspm_example/{name}.py" for name in NAMES)):
        assert f"\n{(EXAMPLE / file).read_text().rstrip()}\n```" in page, file
