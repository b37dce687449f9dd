"""Folders of a bundle: their names, and that tensors are never served under the card of others."""

import asyncio
import json
import logging
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from fedspm import Federation
from fedspm.base.errors import DamagedFile
from fedspm.base.files import file_names
from fedspm.runs.folder import Run
from fedspm.serve.bundle import load_node, load_router
from fedspm.serve.export import export
from fedspm.serve.hot_reload import ReloadableModel
from fedspm.serve.router import Question, routed_by_model
from serving import trained


@pytest.fixture(scope="module")
def newer(vectors, tmp_path_factory):
    """Another bundle of the same clients."""
    place = tmp_path_factory.mktemp("newer")
    trained(vectors, place / "run", rounds=5)
    export(Run.open(place / "run"), place / "bundle")
    return place / "bundle"


@pytest.mark.parametrize(
    ("inside", "kind", "load"), [("router", "router", load_router), ("clients/north", "node", load_node)]
)
def test_a_bundle_whose_card_is_copied_before_its_tensors_is_taken_up_when_both_are_there(
    served, newer, tmp_path, caplog, inside, kind, load
):
    folder = shutil.copytree(served[2] / inside, tmp_path / "folder")
    old, new = load(folder), load(newer / inside)
    current = ReloadableModel(folder, load)
    shutil.copy(newer / inside / f"{kind}.json", folder)
    with caplog.at_level(logging.WARNING, "fedspm.serve"):
        for _ in range(3):
            asyncio.run(current.refresh())
    assert [record.message for record in caplog.records if "is not used" in record.message] == [
        f"the new bundle is not used: {folder / kind}.safetensors is damaged, or not of the same export as {kind}.json "
        "(its SHA-256 is another); copy both files again"
    ]
    assert current.model.card.version == old.card.version
    shutil.copy(newer / inside / f"{kind}.safetensors", folder)
    asyncio.run(current.refresh())
    assert current.model.card.version == new.card.version
    assert all(torch.equal(current.model.tensors[name], tensor) for name, tensor in new.tensors.items())


def test_another_card_of_the_same_tensors_is_taken_up(newer, tmp_path):
    """An export with another share of false alarms differs in nothing else."""
    folder = shutil.copytree(newer / "router", tmp_path / "router")
    current = ReloadableModel(folder, load_router)
    card = current.model.card.model_copy(update={"false_alarms": 0.2})
    (folder / "router.json").write_text(card.model_dump_json())
    asyncio.run(current.refresh())
    assert current.model.card == card


def test_a_bundle_that_cannot_be_built_here_is_not_taken_up(served, newer, tmp_path, caplog):
    folder = shutil.copytree(served[2] / "router", tmp_path / "router")
    current = ReloadableModel(folder, load_router)
    old = current.model
    shutil.copy(newer / "router" / "router.safetensors", folder)
    card = json.loads((newer / "router" / "router.json").read_text())
    card["settings"]["router"]["encoder"] = "nowhere:network"
    (folder / "router.json").write_text(json.dumps(card))
    with caplog.at_level(logging.WARNING, "fedspm.serve"):
        for _ in range(3):
            asyncio.run(current.refresh())
    assert [record.message.partition(":")[0] for record in caplog.records] == ["the new bundle is not used"]
    assert current.model is old
    shutil.copy(newer / "router" / "router.json", folder)
    asyncio.run(current.refresh())
    assert current.model.card.version == load_router(newer / "router").card.version


def test_tensors_of_another_export_are_refused(served, newer, tmp_path):
    folder = shutil.copytree(served[2] / "clients" / "north", tmp_path / "north")
    shutil.copy(newer / "clients" / "north" / "node.safetensors", folder)
    with pytest.raises(DamagedFile, match=r"node\.safetensors is damaged, or not of the same export as node\.json"):
        load_node(folder)


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (["north", "St. Mary's", "../../etc"], ["north", "St._Mary_s", "_.._etc"]),
        (["a/b", "a_b", "a_b-0"], ["a_b-1", "a_b-2", "a_b-0"]),
        (["North", "north"], ["North-0", "north-1"]),
    ],
)
def test_folders_are_named_after_clients_and_numbered_where_that_is_not_enough(names, folders):
    assert file_names(names) == folders


@given(some.lists(some.sampled_from(["", "a/b", "a_b", "A_b", "a_b-0", "a_b-1", "a_b-1-2", "a/b-3"]), max_size=12))
def test_every_client_has_a_folder_of_its_own(names):
    folders = file_names(names)
    assert len({folder.lower() for folder in folders}) == len(names)
    assert folders == file_names(names)


def test_stray_files_are_named_once_and_stop_no_swap(served, tmp_path, caplog):
    folder = shutil.copytree(served[2] / "router", tmp_path / "router")
    (folder / "notes.json").write_text("{}")
    with caplog.at_level(logging.WARNING, "fedspm.serve"):
        current = ReloadableModel(folder, load_router)
        for _ in range(3):
            asyncio.run(current.refresh())
        (line,) = [record.message for record in caplog.records]
        assert line == f"{folder} holds 'notes.json', which no export wrote; it is not used"
        card = json.loads((folder / "router.json").read_text())
        (folder / "router.json").write_text(json.dumps(card | {"version": "newer"}))
        asyncio.run(current.refresh())
    assert current.model.card.version == "newer"


def test_a_card_of_the_other_kind_is_a_stray_too(served, tmp_path, caplog):
    """A router.json in the folder of a node was watched in place of node.json: no new bundle was seen any more."""
    folder = shutil.copytree(served[2] / "clients" / "north", tmp_path / "north")
    shutil.copy(served[2] / "router" / "router.json", folder)
    with caplog.at_level(logging.WARNING, "fedspm.serve"):
        current = ReloadableModel(folder, load_node)
        assert [record.message for record in caplog.records] == [
            f"{folder} holds 'router.json', which no export wrote; it is not used"
        ]
        card = json.loads((folder / "node.json").read_text())
        (folder / "node.json").write_text(json.dumps(card | {"version": "newer"}))
        asyncio.run(current.refresh())
    assert current.model.card.version == "newer"


def test_rows_arerouted_by_model_by_the_model_that_they_were_read_for(served, tmp_path):
    """Of a query that waited while a bundle for other rows was swapped in, a batch was made that nobody could route."""
    r = np.random.default_rng(0)
    rows = {name: (r.normal(size=(60, 4)).astype(np.float32), r.integers(0, 2, 60)) for name in ("east", "west")}
    trained(Federation.from_arrays(rows), tmp_path / "run", rounds=1)
    export(Run.open(tmp_path / "run"), tmp_path / "bundle")
    old, new = load_router(served[2] / "router"), load_router(tmp_path / "bundle" / "router")
    questions = [Question(old, torch.zeros(2, 6)), Question(new, torch.zeros(1, 4)), Question(old, torch.ones(3, 6))]
    found = routed_by_model(questions)
    assert [routed.model for routed in found] == [old, new, old]
    for question, routed in zip(questions, found, strict=True):
        torch.testing.assert_close(routed.result.posterior, question.model.route(question.x).posterior)
