"""Logs of a run: JSON lines, one per round (metrics.jsonl, diagnostics.jsonl, absent.jsonl), and counts by site
(releases.json)."""

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from fedspm.base.errors import DamagedFile
from fedspm.base.files import read_json, write_atomically

Line = dict[str, Any]


def read_log(path: Path, needed: Set[str] = frozenset()) -> list[Line]:
    """The lines of a log, oldest first; none if there is no such file. All must have a round and the `needed` keys."""
    if not path.exists():
        return []
    lines = []
    for number, text in enumerate(path.read_bytes().splitlines(), 1):
        try:
            line = json.loads(text)
            line["round"] + 0
            if not needed <= line.keys():
                raise KeyError(needed)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFile(f"{path} is damaged in line {number}; delete that line and those after it") from error
        lines.append(line)
    return lines


def add_to_log(path: Path, line: Mapping[str, Any]) -> None:
    """Add the line of a round; lines of that round and later ones, left by a crash, are replaced."""
    kept = [earlier for earlier in read_log(path) if earlier["round"] < line["round"]]
    lines = [json.dumps(each, ensure_ascii=False) for each in (*kept, line)]
    write_atomically(path, "\n".join(lines) + "\n")


def read_counts(path: Path) -> dict[str, int]:
    """One whole number for each site; none if there is no such file."""
    found = read_json(path) if path.exists() else {}
    if not isinstance(found, dict) or not all(type(count) is int for count in found.values()):
        raise DamagedFile(f"{path} is damaged: it should hold a whole number for each site")
    return found


def write_counts(path: Path, counts: Mapping[str, int]) -> None:
    write_atomically(path, json.dumps(counts, ensure_ascii=False))
