"""What does not answer a probe is never served: the old bundle serves on, and at the start there is a sentence."""

import asyncio
import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file

from commands import fedspm
from fedspm.base.errors import FedSPMError
from fedspm.base.files import sha256
from fedspm.serve.bundle import load_node, load_router, pack
from fedspm.serve.hot_reload import ReloadableModel
from fedspm.serve.node import node_app
from fedspm.serve.router import Router

NODES = {name: f"http://{name}" for name in ("north", "south", "west")}


def rewritten(folder, kind, change, **said):
    """The folder with other tensors, under a card that goes with them."""
    tensors = load_file(folder / f"{kind}.safetensors")
    content = pack(change(dict(tensors)))
    card = json.loads((folder / f"{kind}.json").read_text())
    (folder / f"{kind}.safetensors").write_bytes(content)
    card |= {"sha256": sha256(content), "version": "broken"} | said
    (folder / f"{kind}.json").write_text(json.dumps(card))


def spoilt(name):
    return lambda tensors: tensors | {name: torch.full_like(tensors[name], torch.nan)}


def cut(name):
    return lambda tensors: tensors | {name: tensors[name][..., :1].contiguous()}


def without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def unchanged(tensors):
    return tensors


NODE = ("clients/north", "node", load_node)
ROUTER = ("router", "router", load_router)
BROKEN = [
    (*NODE, spoilt("head.bias"), {}, "P(class | x) is not finite"),
    (*NODE, cut("head.weight"), {}, ""),
    (*NODE, without("mixing"), {}, "KeyError"),
    (*NODE, unchanged, {"classes": ["ill", "well", "dead"]}, "P(class | x) has shape (1, 2), not (1, 3)"),
    (*ROUTER, spoilt("tilt.gamma"), {}, "P(client | x) is not finite"),
    (*ROUTER, without("tilt.xi"), {}, "KeyError"),
    (*ROUTER, unchanged, {"names": ["north", "south"], "counts": [90, 120]}, ""),
    (*ROUTER, lambda tensors: tensors | {"spare": torch.tensor([torch.inf])}, {}, "spare is not finite"),
    (*ROUTER, unchanged, {"counts": [90, 120]}, ""),
    (*ROUTER, unchanged, {"folders": ["north"]}, "contradicts itself at folders"),
    (*ROUTER, unchanged, {"classes": ["1", 1]}, "contradicts itself at classes"),
    (*ROUTER, unchanged, {"meanings": {"north": [[0, 1]]}}, "contradicts itself at meanings"),
    (*ROUTER, unchanged, {"meanings": {"north": [None, [0, 7]]}}, "contradicts itself at meanings"),
    (*ROUTER, unchanged, {"table": {"columns": [{"name": "age"}]}}, "contradicts itself at table"),
    (*NODE, unchanged, {"names": [], "counts": []}, ""),
]
broken = pytest.mark.parametrize(("inside", "kind", "load", "change", "said", "why"), BROKEN)


@broken
def test_a_bundle_that_does_not_answer_is_not_swapped_in(
    served, tmp_path, caplog, inside, kind, load, change, said, why
):
    folder = shutil.copytree(served[2] / inside, tmp_path / "folder")
    current = ReloadableModel(folder, load)
    old = current.model
    rewritten(folder, kind, change, **said)
    with caplog.at_level(logging.WARNING, "fedspm.serve"):
        for _ in range(3):
            asyncio.run(current.refresh())
    assert current.model is old
    (line,) = [record.message for record in caplog.records]
    assert line.startswith(f"the new bundle is not used: {folder}: version broken does not answer a probe: ")
    assert why in line
    for file in (served[2] / inside).iterdir():  # and what is well is taken up again
        shutil.copy(file, folder)
    asyncio.run(current.refresh())
    assert current.versions() == [old.card.version]


@broken
def test_a_service_that_could_not_answer_does_not_start(served, tmp_path, inside, kind, load, change, said, why):
    folder = shutil.copytree(served[2] / inside, tmp_path / "folder")
    rewritten(folder, kind, change, **said)
    with pytest.raises(FedSPMError, match="version broken does not answer a probe: ") as caught:
        node_app(folder) if kind == "node" else Router(folder, NODES)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_whole_bundle_that_was_refused_is_not_tried_again_and_again(served, tmp_path):
    folder, loads = shutil.copytree(served[2] / "router", tmp_path / "router"), []

    def load(path):
        loads.append(path)
        return load_router(path)

    current = ReloadableModel(folder, load)
    rewritten(folder, "router", spoilt("tilt.xi"))
    for _ in range(4):
        asyncio.run(current.refresh())
    assert len(loads) == 2


def test_the_command_says_it_in_one_sentence(served, tmp_path):
    folder = shutil.copytree(served[2] / "clients" / "north", tmp_path / "north")
    rewritten(folder, "node", spoilt("head.weight"))
    done = fedspm("serve", "node", folder, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "does not answer a probe: P(class | x) is not finite" in done.stderr
