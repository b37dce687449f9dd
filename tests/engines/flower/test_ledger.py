"""The ledger of a site: it only grows, and whatever else happens to it is found."""

import json
import os
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from fedspm.base.errors import DamagedFile
from fedspm.engines.flower.ledger import Entry, Ledger, epsilon_spent, rounds_answered, starts_answered
from fedspm.federated.accountant import epsilon, gaussian_epsilon

ROUND = Entry("run1", 1, "update", "round", "a", 100, 1, 4.0)


def filled(folder, lines=4):
    ledger = Ledger(folder)
    for number in range(lines):
        ledger.append(replace(ROUND, turn=number + 1))
    return ledger


def test_what_was_written_is_read_again_by_everybody(tmp_path):
    ledger, other = filled(tmp_path), Ledger(tmp_path)
    assert [entry.turn for entry in other.entries()] == [1, 2, 3, 4]
    ledger.append(replace(ROUND, run="run2"))
    assert other.entries()[-1].run == "run2"  # of another process, in simulation
    assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in os.listdir(tmp_path))


def edited(folder, change):
    path = folder / "ledger.jsonl"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def first_smaller(lines):
    return [lines[0].replace(b'"bytes": 100', b'"bytes": 1'), *lines[1:]]


def last_smaller(lines):
    return [*lines[:-1], lines[-1].replace(b'"noised": 1', b'"noised": 0')]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (first_smaller, "line 2 does not follow from the line before it"),
        (last_smaller, "line 4 is not the one that ledger.head was written for"),
        (lambda lines: lines[:-1], "it has 3 of the 4 lines"),
        (lambda lines: [], "it has 0 of the 4 lines"),
        (lambda lines: lines[1:], "line 1 does not follow"),
        (lambda lines: [lines[0], *lines[2:]], "line 2 does not follow"),
        (lambda lines: [*lines, *lines[-1:]], "line 5 does not follow"),
        (lambda lines: [lines[0], b"{}\n", *lines[1:]], "line 2 cannot be read"),
        (lambda lines: [*lines[:-1], lines[-1][:-9]], "line 4 cannot be read"),
        (lambda lines: [lines[0].replace(b", ", b","), *lines[1:]], "line 1 does not follow"),
    ],
)
@pytest.mark.parametrize("read_before", [True, False])
def test_a_ledger_that_was_changed_is_refused(tmp_path, change, why, read_before):
    ledger = filled(tmp_path)
    edited(tmp_path, change)
    ledger = ledger if read_before else Ledger(tmp_path)
    with pytest.raises(DamagedFile, match=f"{why}.*answers nobody"):
        ledger.entries()
    with pytest.raises(DamagedFile):
        ledger.append(ROUND)


def test_a_chain_that_was_written_anew_does_not_fit_the_head(tmp_path):
    filled(tmp_path)
    head = (tmp_path / "ledger.head").read_bytes()
    (tmp_path / "ledger.jsonl").unlink()
    (tmp_path / "ledger.head").unlink()
    forged = Ledger(tmp_path)
    for number in range(4):
        forged.append(replace(ROUND, turn=number + 1, noised=0))
    (tmp_path / "ledger.head").write_bytes(head)
    with pytest.raises(DamagedFile, match=r"line 4 is not the one"):
        Ledger(tmp_path).entries()


@pytest.mark.parametrize("piece", [None, 20])
def test_a_crash_while_a_line_was_written_loses_nothing_that_has_left(tmp_path, piece):
    ledger = filled(tmp_path)
    head = (tmp_path / "ledger.head").read_bytes()
    before = (tmp_path / "ledger.jsonl").read_bytes()
    ledger.append(replace(ROUND, turn=5))
    after = (tmp_path / "ledger.jsonl").read_bytes()
    (tmp_path / "ledger.head").write_bytes(head)
    (tmp_path / "ledger.jsonl").write_bytes(after if piece is None else after[: len(before) + piece])
    again = Ledger(tmp_path)
    assert len(again.entries()) == (5 if piece is None else 4)
    again.append(replace(ROUND, turn=6))
    assert [entry.turn for entry in Ledger(tmp_path).entries()][-1] == 6
    assert json.loads((tmp_path / "ledger.head").read_text())["lines"] == len(again.entries())


def test_budgets_are_over_all_runs():
    entries = [replace(ROUND, run=run, turn=turn) for run in ("a", "b") for turn in (1, 2, 3)]
    assert rounds_answered(entries) == 6
    assert rounds_answered([*entries, replace(ROUND, run="a", turn=1, request="other")]) == 7
    assert rounds_answered([*entries, replace(ROUND, run="a", turn=1, step="expect")]) == 6  # two exchanges of a round
    assert rounds_answered([*entries, replace(ROUND, run="c", turn=0, when="start")]) == 6
    assert epsilon_spent(entries, 1e-5) == epsilon(4.0, 6, 1e-5)
    more = [*entries, replace(ROUND, noise=2.0)]
    assert epsilon_spent(more, 1e-5) == gaussian_epsilon((6 * (2 / 4) ** 2 + 1) ** 0.5, 1e-5)
    exact = replace(ROUND, run="d", turn=0, when="start", noised=0, noise=0.0)
    assert epsilon_spent([*more, exact], 1e-5) is None
    assert starts_answered([*more, exact]) == {"d"}
    assert epsilon_spent([*more, replace(exact, bytes=0)], 1e-5) == epsilon_spent(more, 1e-5)
