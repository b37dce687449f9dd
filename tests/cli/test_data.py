"""fedspm data list | get | show, as a person would call them."""

import json
import shlex
import shutil
import urllib.request

import pytest
from typer.testing import CliRunner

from commands import fedspm
from fedspm.base.errors import FedSPMError
from fedspm.cli.app import app
from fedspm.cli.options import layers
from fedspm.data.catalog import dataset
from fedspm.runs.config import resolve
from forms import write_isic, write_parquet


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """CIFAR-10 in small and nothing else: no npm, no network."""

    def unreachable(address, timeout):
        raise OSError("no network in this test")

    write_parquet(tmp_path / "data" / "cifar10", fine=False, style="hub")
    (tmp_path / "data" / "cifar100").mkdir()
    monkeypatch.setenv("FEDSPM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(dataset, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    monkeypatch.setattr(shutil, "which", lambda name: None)


def said(*arguments):
    done = CliRunner().invoke(app, ["data", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_list_says_what_is_here_and_what_is_missing(machine):
    lines = {line.split()[0]: line for line in said("list").splitlines() if line}
    assert "ships with the package" in lines["fashion-sample"]
    assert lines["cifar10"].endswith("data/cifar10 (parquet)")
    assert "missing: run `fedspm data get cifar100`" in lines["cifar100"]
    assert "missing: on Debian or Ubuntu run `apt-get install" in lines["fashion-mnist"]
    assert "missing" in lines["fed-isic2019"]
    rows = {row["name"]: row for row in json.loads(said("list", "--json"))}
    assert rows["cifar10"]["form"] == "parquet"
    assert rows["cifar100"]["where"] is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cifar100", r"no network in this test; put cifar-100-python\.tar\.gz into .* by hand"),
        ("fashion-mnist", "by hand, or on Debian or Ubuntu run `apt-get install dataset-fashion-mnist`"),
        ("fed-isic2019", r"licences .* for a person to accept; follow FLamby's page"),
        ("fashion-sample", "nothing to fetch"),
        (
            "mnist",
            "no data set 'mnist', nor .* known are fashion-sample, fashion-mnist, cifar10, cifar100, fed-isic2019",
        ),
    ],
)
def test_get_says_why_not(machine, name, sentence):
    with pytest.raises(FedSPMError, match=sentence):
        said("get", name)


def test_get_what_is_here(machine):
    assert "cifar10 is here: " in said("get", "cifar10")


@pytest.mark.filterwarnings("ignore:cifar10")
def test_show_counts_classes_and_clients(machine):
    options = ("show", "cifar10", "--clients", "2", "--alpha-inter", "10", "--seed", "1")
    text = said(*options)
    assert "2 clients, 10 classes, rows of 3 × 32 × 32" in text
    assert "permutes the label names" in text
    counts = json.loads(said(*options, "--json"))["clients"]
    assert list(counts) == ["client-0", "client-1"]
    automobiles = [sum(fold["automobile"] for fold in client.values()) for client in counts.values()]
    assert sum(automobiles) == 6
    row = next(line for line in text.splitlines() if line.startswith("│ automobile"))
    assert [int(cell) for cell in row.split("│")[2:5]] == [*automobiles, 6]
    assert sum(sum(fold.values()) for client in counts.values() for fold in client.values()) == 60


def test_show_counts_a_plugin_that_comes_divided(monkeypatch, vectors):
    monkeypatch.setattr("fedspm.data.catalog.sources.plugin_names", lambda kind: ["wards"])
    monkeypatch.setattr("fedspm.data.catalog.sources.plugin", lambda kind, name: lambda path: vectors)
    assert "wards: 3 clients, 2 classes, rows of 6" in said("show", "wards")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "ward.csv"
    clients = ("[/b]", ":cat:", "[red]x")
    lines = [f"{client},{j},{'[/i]' if j % 2 else 'well'}" for client in clients for j in range(20)]
    path.write_text("\n".join(["the ward,u,dx", *lines]))
    return path


def test_names_that_look_like_markup_are_shown_as_they_are(table):
    options = (str(table), "--set", "data.client_column=the ward", "--set", "data.label_column=dx")
    text = said("check", *options)
    for name in ("[/b]", ":cat:", "[red]x", "│ [/i] "):
        assert name in text


def test_what_check_says_to_type_has_the_settings_it_was_given(table):
    given = ["data.client_column=the ward", "data.label_column=dx"]
    text = said("check", str(table), "--set", given[0], "--set", given[1])
    ready = next(line for line in text.splitlines() if line.startswith("ready"))
    *_, data, first, second = shlex.split(ready.replace("--set ", ""))
    assert (data, first, second) == (str(table), *given)
    assert resolve(layers(None, {"data.name": data}, [first, second])).federation().names


def test_a_natural_federation_trains_and_says_what_is_absent(tmp_path):
    path = write_isic(tmp_path / "isic", centers=range(1, 6), each=12)
    small = ("predictor.encoder=cnn", "predictor.steps=1", "router.steps=1", "data.size=16", f"data.path={path}")
    settings = [word for setting in small for word in ("--set", setting)]
    out = tmp_path / "run"
    done = fedspm("train", "--data", "fed-isic2019", "--rounds", "1", "--out", out, *settings)
    assert "center 0 (bcn) is absent" in done.stderr
    assert "5 clients, 40 training rows" in done.stdout
    assert "balanced" in done.stdout
    assert "vienna-dias" in done.stdout
    config = (out / "config.toml").read_text()
    assert "size = 16" in config
    assert "\nclients = " not in config
    metrics = json.loads((out / "metrics.jsonl").read_text())
    for name in ("balanced_accuracy", "average_balanced_accuracy"):
        assert 0 <= metrics[name] <= 1
    assert metrics["clients"].keys() == {"vidir-molemax", "vidir-modern", "rosendahl", "msk", "vienna-dias"}


def test_check_and_train_say_the_same_of_a_client_with_fewer_rows_than_components(tmp_path):
    rows = [f"{name},{k % 7},{k % 5},{k % 2}" for name in ("north", "east") for k in range(40)]
    rows += [f"{name},{k},{k % 3},{k % 2}" for name in ("south", 4) for k in range(3)]
    table = tmp_path / "few.csv"
    table.write_text("\n".join(["client,a,b,label", *rows]))
    refused = fedspm("data", "check", table, check=False)
    assert refused.returncode == 1
    assert "client 'south' has 2 training rows, fewer than the 3 components" in refused.stdout
    typed = shlex.split(refused.stdout.partition("leave the client out (")[2].partition(")")[0])
    assert fedspm("data", "check", table, *typed).returncode == 0
    assert fedspm("data", "check", table, "--set", "data.without=4", "--set", "components=2").returncode == 0
    unknown = fedspm("data", "check", table, "--set", "data.without=west", check=False).stdout
    assert "there is no client 'west'; the clients are 4, east, north, south" in unknown
    assert fedspm("data", "check", table, "--set", "components=2").returncode == 0
    trained = fedspm("train", "--data", table, "--components", 2, "--rounds", 1, "--out", tmp_path / "run")
    assert "warning: client 'south' has 2 training rows: too few" in trained.stderr
    assert "too few" not in said("check", str(table), "--set", "components=2", "--set", "min_count=2")
