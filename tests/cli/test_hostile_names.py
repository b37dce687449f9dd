"""Names of clients, columns, classes and files are other people's words: none of them reaches a terminal, a log or a
page as more than a word."""

import csv
import json
import logging
import re
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from fedspm.base.errors import FedSPMError
from fedspm.base.printable import CONTROLS, printable, printable_json
from fedspm.cli.app import _warn_once, app, main
from fedspm.serve.processes import OneLine

COLOUR, TITLE, FORGED, BIDI = "\x1b[2J\x1b[31m", "\x1b]0;owned\x07", "a\nfedspm: all is well", "\u202egnp.exe"
CLIENTS = [f"north{COLOUR}", f"south\n{FORGED}", f"west{BIDI}\x9b31m"]
COLUMNS = [f"age{TITLE}", "blood\npressure", "<script>alert(1)</script>", "x\x7f"]
CLASSES = [f"ill{COLOUR}", "<img src=x onerror=alert(1)>"]
SMALL = ["--rounds", "2", "--components", "2", "--set", "workers=1", "--set", "predictor.steps=2", "--set",
         "router.steps=2"]  # fmt: skip


def harmless(text):
    """Nothing in it that a terminal obeys, but line breaks."""
    found = {f"{code:#x}" for code in CONTROLS if chr(code) in text and chr(code) != "\n"}
    return not found and not re.search(r"^(fedspm: all is well|pressure)", text, re.MULTILINE)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """(table, run) of three clients whose every name is an attack."""
    place = tmp_path_factory.mktemp("hostile")
    random = np.random.default_rng(0)
    path = place / f"rows{COLOUR}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["client", *COLUMNS, "label"])
        for k in range(240):
            table.writerow([CLIENTS[k % 3], *random.normal(size=4).round(3), CLASSES[random.integers(2)]])
    done = invoked("train", "--data", path, *SMALL, "--out", place / "run")
    assert harmless(done.output)
    return path, place / "run"


def invoked(*arguments, code=0):
    done = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


COMMANDS = [
    ["data", "check", "{data}"],
    ["evaluate", "{run}"],
    ["route", "{run}", "{run}/samples/queries.csv"],
    ["export", "{run}", "--out", "{run}/bundle"],
    ["remove", "{run}", "--name", CLIENTS[0], "--out", "{run}-without"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_no_command_prints_a_control_character(hostile, command):
    data, run = hostile
    filled = [part.replace("{data}", str(data)).replace("{run}", str(run)) for part in command]
    done = invoked(*filled)
    assert harmless(done.output), ascii(done.output)
    assert command[0] == "export" or re.search(r"\\(x1b|u202e)", done.output)  # names are shown, with escapes


@pytest.mark.parametrize("command", COMMANDS[:3], ids=lambda command: " ".join(command[:2]))
def test_json_holds_none_either_and_says_the_same(hostile, command):
    data, run = hostile
    filled = [part.replace("{data}", str(data)).replace("{run}", str(run)) for part in command]
    lines = invoked(*filled, "--json").stdout.splitlines()
    assert all(map(harmless, lines))
    said = "".join(json.dumps(json.loads(line), ensure_ascii=False) for line in lines)
    assert all(json.dumps(name, ensure_ascii=False)[1:-1] in said for name in CLIENTS)


def test_the_report_is_a_page_without_foreign_markup(hostile):
    page = (hostile[1] / "report.html").read_text("utf-8")
    assert "<img src=x" not in page
    assert "alert(1)</script>" not in page
    assert "&lt;img src=x" in page


def test_errors_and_warnings_are_one_harmless_line(monkeypatch, capsys):
    def fails():
        warnings.warn(f"client {CLIENTS[0]!s} is odd", stacklevel=1)
        raise FedSPMError(f"client {CLIENTS[1]} and {CLIENTS[2]} have no rows")

    monkeypatch.setattr("fedspm.cli.app.app", fails)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    _warn_once.cache_clear()
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert harmless(said)
    assert said.count("\n") == 2


def test_a_record_of_the_services_log_is_one_line():
    record = logging.LogRecord("fedspm.serve", logging.WARNING, "", 0, "node %s is down", (CLIENTS[1],), None)
    assert OneLine("%(message)s").format(record) == "node south\\na\\nfedspm: all is well is down"


def test_what_is_harmless_stays_as_it_is():
    words = "γ_ic, Müller & Söhne, 東京, [/b] :cat:"
    assert printable(words) == words
    assert json.loads(printable_json({"a": "".join(map(chr, CONTROLS))}, indent=1))["a"] == "".join(map(chr, CONTROLS))
    assert printable("\x1b\t\u2066") == "\\x1b\\t\\u2066"
