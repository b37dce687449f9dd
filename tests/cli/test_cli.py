"""The commands as a person types them."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from commands import PATIENCE, fedspm, wait

SMALL = "--clients 3 --components 2 --workers 1 --eval-every 2 --set predictor.steps=2 --set router.steps=2"
SMALL += " --set predictor.batch_size=16 --set router.batch_size=16 --set em.hold=1"


def train(out, *more, **options):
    return fedspm("train", *SMALL.split(), "--rounds", 4, "--out", out, *more, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "first"
    out_text = train(out).stdout
    return out, out_text


def same_bits(one: Path, other: Path) -> None:
    folders = [sorted((run / "checkpoints").glob("round-*"))[-1] for run in (one, other)]
    assert folders[0].name == folders[1].name
    files = [sorted(file.relative_to(folder) for file in folder.rglob("*.safetensors")) for folder in folders]
    assert files[0] == files[1]
    assert len(files[0]) == 5  # shared, the server's, and one per client
    for file in files[0]:
        tensors = [load_file(folder / file) for folder in folders]
        assert tensors[0].keys() == tensors[1].keys()
        for name, value in tensors[0].items():
            assert value.equal(tensors[1][name]), f"{file}: {name}"
    metrics = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, other)]
    for line in (*metrics[0], *metrics[1]):
        del line["seconds"], line["seconds_per_round"]
    assert metrics[0] == metrics[1]


def test_train_ends_with_a_table_the_report_and_what_next(run):
    _, text = run
    for word in ("system", "average", "routing", "client-0", "client-2", "report.html", "try next", "fedspm route"):
        assert word in text
    assert "multiply-adds" in text


def columns(lines):
    """A table by the heading of a column and the name of a row."""
    headings, *rows = lines
    return {heading: {row[0]: row[i] for row in rows} for i, heading in enumerate(headings) if i}


def test_terminal_and_report_show_the_same_numbers(run):
    out, text = run
    boxes = [re.split("[┃│]", line)[1:-1] for line in text.splitlines() if line[:1] in ("┃", "│")]
    of_accuracies, of_scores = boxes[: len(boxes) // 2], boxes[len(boxes) // 2 :]
    terminal, scores = (
        columns([[cell.strip() for cell in row] for row in table]) for table in (of_accuracies, of_scores)
    )
    clients = (out / "report.html").read_text().split("<h2>Clients</h2>")[1].split("</table>")[0]
    report = columns([re.findall("<t[hd]>(.*?)</t[hd]>", row) for row in clients.split("<tr>")[1:]])
    assert terminal["balanced"].keys() == {"all clients", "client-0", "client-1", "client-2"}
    for here, there in {"system": "system", "average": "own predictor", "routing": "routing"}.items():
        assert terminal[here] == report[there]
    assert terminal["balanced"] == report["balanced"]
    metrics = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    own = {name: f"{client['average_balanced_accuracy']:.3f}" for name, client in metrics["clients"].items()}
    assert own != {name: terminal["balanced"][name] for name in own}  # else either would do
    answers = (out / "report.html").read_text().split("<h2>Metrics of the answers</h2>")[1].split("</table>")[0]
    assert scores == columns([re.findall("<t[hd]>(.*?)</t[hd]>", row) for row in answers.split("<tr>")[1:]])
    assert scores["AUROC"]["all clients"] == f"{metrics['scores']['system']['auroc']:.3f}"
    assert "<b>balanced</b>: mean recall over classes of the system's answers" in " ".join(
        (out / "report.html").read_text().split()
    )


def test_what_it_says_to_try_next_can_be_typed(run):
    _, text = run
    line = next(line for line in text.splitlines() if line.startswith("try next"))
    arguments = line.removeprefix("try next").strip().partition(" ")[2]
    typed = f"{shlex.quote(sys.executable)} -m fedspm {arguments}"
    answered = subprocess.run(typed, shell=True, capture_output=True, text=True, check=True)
    assert answered.stdout.count("answered by") == 3


def test_a_report_needs_no_test_rows_of_the_first_clients(tmp_path):
    lines = [f"c{i},{j % 7},{(i + j) % 5},{j % 2},train" for i in range(8) for j in range(12)]
    lines += [f"c7,{j},{j % 3},{j % 2},test" for j in range(6)]
    (tmp_path / "late.csv").write_text("\n".join(["client,a,b,label,split", *lines]))
    done = fedspm("train", "--data", tmp_path / "late.csv", "--rounds", 1, "--out", tmp_path / "run")
    assert "report.html" in done.stdout


def test_the_run_folder(run):
    out, _ = run
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["command"].startswith("fedspm train")
    assert {"versions", "seed", "data_fingerprint", "machine", "encoders"} <= manifest.keys()
    asked = ["git", "-C", Path(__file__).parent, "rev-parse", "HEAD"]
    found = shutil.which("git") and subprocess.run(asked, capture_output=True, text=True, check=False)
    head = found.stdout.strip() if found else ""  # none in an archive either
    assert manifest["versions"].get("commit", "").removesuffix("-dirty") == head[:12]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [2, 4]
    wanted = {"system_accuracy", "average_accuracy", "routing_accuracy", "component_purity", "seconds"}
    assert wanted <= lines[-1].keys()
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 6
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert 'src="' not in page
    assert len(list((out / "samples").glob("*.png"))) == 3


def test_evaluate_and_route(run):
    out, _ = run
    metrics = json.loads(fedspm("evaluate", out, "--json").stdout)
    assert metrics["round"] == 4
    assert "client-1" in fedspm("evaluate", out).stdout
    images = sorted((out / "samples").glob("*.png"))
    replies = [json.loads(line) for line in fedspm("route", out, *images, "--json").stdout.splitlines()]
    assert len(replies) == 3
    for reply in replies:
        assert reply["client"] == max(reply["posterior"], key=reply["posterior"].get)
        assert str(reply["prediction"]) == max(reply["probabilities"], key=reply["probabilities"].get)
        assert abs(sum(reply["posterior"].values()) - 1) < 1e-5
        assert abs(sum(reply["probabilities"].values()) - 1) < 1e-5
    assert "answered by" in fedspm("route", out, images[0]).stdout


def test_more_workers_give_the_same_bits(run, tmp_path):
    train(tmp_path / "two", "--workers", "2")
    same_bits(run[0], tmp_path / "two")


@pytest.mark.parametrize("delay", [0.0, 0.4, 1.0])
def test_killed_and_resumed_it_ends_with_the_same_bits(run, tmp_path, delay):
    out = tmp_path / "killed"
    arguments = ["train", *SMALL.split(), "--rounds", "4", "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-m", "fedspm", *arguments], stdout=subprocess.DEVNULL)
    wait((out / "manifest.json").exists)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    fedspm("resume", out)
    same_bits(run[0], out)


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(run, tmp_path):
    out = tmp_path / "stopped"
    arguments = ["train", *SMALL.split(), "--rounds", "4", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedspm", *arguments], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    wait(lambda: list(out.glob("checkpoints/round-*")))
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert f"fedspm resume {out}" in text.replace("\n", "")
    fedspm("resume", out)
    same_bits(run[0], out)


def test_resuming_a_finished_run_changes_nothing(run):
    before = (run[0] / "metrics.jsonl").read_text()
    fedspm("resume", run[0])
    assert (run[0] / "metrics.jsonl").read_text() == before


def one_sentence(*arguments, **options):
    done = fedspm(*arguments, check=False, **options)
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr
    message = done.stderr.strip()
    assert message.startswith("fedspm: ")
    assert "\n" not in message
    return message


def test_whoever_names_a_run_again_is_told_how_to_go_on(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")  # killed before its first evaluation
    assert f"fedspm resume {tmp_path}" in one_sentence("train", "--out", tmp_path)


def test_mistakes_get_one_sentence(run, tmp_path):
    out, _ = run
    assert "already exists" in one_sentence("train", "--out", out)
    assert "did you mean" in one_sentence("train", "--set", "router.stepps=3", "--out", tmp_path / "a")
    assert "no data set 'mnist'" in one_sentence("train", "--data", "mnist", "--out", tmp_path / "a")
    assert "no algorithm" in one_sentence("train", "--algorithm", "fedfoo", "--out", tmp_path / "a")
    without = ("train", "--algorithm", "fedavg", "--variant", "cx", "--out", tmp_path / "a")
    assert "variant = cx: fedavg has no variants" in one_sentence(*without)
    assert "is not a run" in one_sentence("resume", tmp_path)
    assert "is not a run" in one_sentence("evaluate", tmp_path)
    assert "no image" in one_sentence("route", out, tmp_path / "nothing.png")
    (tmp_path / "broken.png").write_bytes(b"not an image")
    assert "cannot be read as an image" in one_sentence("route", out, tmp_path / "broken.png")
    missing = one_sentence(
        "train", "--data", "fashion-mnist", "--set", f"data.path={tmp_path}", "--out", tmp_path / "a"
    )
    assert "was not found" in missing
    assert "apt-get install" in missing
    assert not (tmp_path / "a").exists()


def test_a_damaged_checkpoint_is_named(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run[0], copy)
    newest = sorted((copy / "checkpoints").glob("round-*"))[-1]
    file = newest / "shared.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    message = one_sentence("resume", copy)
    assert "shared.safetensors is damaged" in message
    assert "delete" in message
    file.unlink()
    assert "shared.safetensors is missing" in one_sentence("resume", copy)


def test_help_names_every_option_with_its_default():
    text = fedspm("train", "--help", env={**os.environ, "COLUMNS": "200", "TERM": "dumb"}).stdout
    for option in (
        "data",
        "clients",
        "components",
        "variant",
        "preset",
        "rounds",
        "horizon",
        "alpha-inter",
        "alpha-intra",
    ):
        assert f"--{option}" in text
    assert text.count("default") >= 14


def test_a_terminal_that_knows_no_greek_is_spoken_to_all_the_same():
    shown = fedspm("settings", "em.server_step", env={**os.environ, "PYTHONIOENCODING": "ascii"}).stdout
    assert "first server step on ? and ?" in shown


def test_settings_are_listed_found_by_word_and_given_as_json():
    every = fedspm("settings").stdout
    assert "em.server_step = 4.0; paper: 1.0" in every
    assert "options.mu = 0.01" in every
    found = json.loads(fedspm("settings", "router", "momentum", "--json").stdout)
    assert [(each["key"], each["default"]) for each in found] == [("router.momentum", 0.95)]
    assert "no setting has 'nowhere' in it" in one_sentence("settings", "nowhere")


def test_tensorboard_by_option(tmp_path):
    train(tmp_path / "board", "--tensorboard", "--rounds", "2")
    assert list((tmp_path / "board" / "tensorboard").glob("events.*"))
