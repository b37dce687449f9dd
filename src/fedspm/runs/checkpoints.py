"""Checkpoints: checkpoints/round-NNNNN/ with shared.safetensors, one file of private state per client, and state.json,
which has the SHA-256 of each and of itself. Only their owner may read them.

A folder appears whole or not at all.
"""

import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import safetensors
from safetensors.torch import load, save

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.base.files import as_file_name, folder_atomically, read_json, sha256
from fedspm.base.tensors import Tensors, plain

FOLDER, SHARED = "checkpoints", "shared.safetensors"
DIGEST = "state_sha256"  # of everything else in state.json


@dataclass(frozen=True)
class Checkpoint:
    """Everything that training needs to go on as if nothing had happened."""

    round: int
    seconds: float
    shared: Tensors
    privates: dict[str, Tensors]
    releases: dict[str, int] | None = field(default_factory=dict)  # by client; None: of before they were counted


def write_checkpoint(run: Path, checkpoint: Checkpoint, keep: int) -> None:
    """The newest `keep` stay."""
    folder = run / FOLDER / f"round-{checkpoint.round:05d}"
    with folder_atomically(folder, private=True) as temporary:
        (temporary / "clients").mkdir()
        digests: dict[str, str] = {}

        def write(file: str, tensors: Tensors) -> str:
            content = save(plain(tensors))
            (temporary / file).write_bytes(content)
            digests[file] = sha256(content)
            return file

        write(SHARED, checkpoint.shared)
        files = {
            name: write(f"clients/{i:05d}-{as_file_name(name)}.safetensors", private)
            for i, (name, private) in enumerate(checkpoint.privates.items())
        }
        state = {"round": checkpoint.round, "seconds": checkpoint.seconds, "clients": files, "sha256": digests}
        state |= {"releases": checkpoint.releases}
        content = json.dumps(state | {DIGEST: _digest(state)}, indent=2, ensure_ascii=False)
        (temporary / "state.json").write_text(content, "utf-8")
    for old in checkpoint_folders(run)[:-keep]:
        shutil.rmtree(old)


def newest_checkpoint(run: Path, clients: Collection[str], *, across_sites: bool) -> Checkpoint:
    """With what is private of all clients; of none only if it stayed at their sites."""
    folders = checkpoint_folders(run)
    if not folders:
        raise FedSPMError(f"{run} has no checkpoint yet; train it with: fedspm resume {quote(str(run))}")
    folder = folders[-1]
    try:
        state = _read_state(folder)
        files = dict(state["clients"])
        if files.keys() != set(clients) and (files or not across_sites):
            raise DamagedFile(f"{folder / 'state.json'} is damaged: its clients are not those of the manifest")
        digests = dict(state.get("sha256", {}))  # runs of before 2026-11-17 have none
        shared = read_tensors(folder / SHARED, digests.get(SHARED))
        privates = {name: read_tensors(folder / file, digests.get(file)) for name, file in files.items()}
        counts = state.get("releases")
        releases = None if counts is None else {name: int(count) for name, count in dict(counts).items()}
        return Checkpoint(int(state["round"]), float(state["seconds"]), shared, privates, releases)
    except DamagedFile as error:
        advice = f"delete {folder} to go back to {folders[-2].name}" if len(folders) > 1 else "there is no earlier one"
        raise DamagedFile(f"{error}; {advice}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"{folder / 'state.json'} is damaged: {error!r}") from error


def _read_state(folder: Path) -> dict[str, Any]:
    """state.json, unless it is not as it was written: whoever went on from another round would get a wrong result."""
    path = folder / "state.json"
    state: dict[str, Any] = read_json(path)
    if state.pop(DIGEST, None) not in (None, _digest(state)):  # runs of before 2026-11-18 have none
        raise DamagedFile(f"{path} was changed after it was written: its SHA-256 is another")
    if int(state["round"]) != round_of(folder):
        raise DamagedFile(
            f"{path} is of round {state['round']}, not of {folder.name}: it was changed, renamed or copied"
        )
    return state


def _digest(state: Mapping[str, Any]) -> str:
    return sha256(json.dumps(state, sort_keys=True).encode())


def checkpoint_folders(run: Path) -> list[Path]:
    """Oldest first; what somebody put beside them is no checkpoint."""
    found = (run / FOLDER).glob("round-*")
    return sorted((folder for folder in found if re.fullmatch(r"round-\d+", folder.name)), key=round_of)


def round_of(folder: Path) -> int:
    return int(folder.name.removeprefix("round-"))


def read_tensors(path: Path, digest: str | None = None) -> Tensors:
    try:
        content = path.read_bytes()
        if digest not in (None, sha256(content)):
            raise DamagedFile(f"{path} is damaged: its SHA-256 is not the one that was written down with it")
        tensors: Tensors = load(content)
    except FileNotFoundError as error:
        raise DamagedFile(f"{path} is missing") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error
    return tensors
