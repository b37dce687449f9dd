"""A bundle that was not signed with the key that is trusted is not served, at the start or as a swap."""

import asyncio
import json
import logging
import shutil
import subprocess
from functools import partial

import pytest

from commands import fedspm
from fedspm.base.errors import FedSPMError
from fedspm.base.files import sha256
from fedspm.runs.folder import Run
from fedspm.serve.bundle import load_node, load_router
from fedspm.serve.export import export
from fedspm.serve.hot_reload import ReloadableModel
from fedspm.serve.signature import read_signing_key, read_trusted_key


@pytest.fixture(scope="module")
def signed(served, tmp_path_factory):
    """(bundle, private key, public key) of the run that is served."""
    place = tmp_path_factory.mktemp("signed")
    key, public = keys(place / "ours")
    export(Run.open(served[1]), place / "bundle", sign=key)
    return place / "bundle", key, public


def keys(path):
    """A key pair, made as the documentation says."""
    path.parent.mkdir(exist_ok=True)
    key, public = path.with_suffix(".key"), path.with_suffix(".pub")
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    return key, public


def folders(bundle):
    return (load_router, bundle / "router", "router"), (load_node, bundle / "clients" / "north", "node")


def test_a_signed_bundle_is_served_with_and_without_the_key(signed):
    for load, folder, _ in folders(signed[0]):
        assert load(folder).card == load(folder, trust=read_trusted_key(signed[2])).card


def test_a_bundle_that_is_not_signed_is_refused(served, signed):
    for load, folder, kind in folders(served[2]):
        with pytest.raises(FedSPMError, match=rf"is not signed: it has no {kind}\.sig; export it with --sign"):
            load(folder, trust=read_trusted_key(signed[2]))


def test_another_key_is_refused(signed, tmp_path):
    _, public = keys(tmp_path / "other")
    for load, folder, _ in folders(signed[0]):
        with pytest.raises(FedSPMError, match="was not signed with the key that is trusted"):
            load(folder, trust=read_trusted_key(public))


def forge_tensors(folder, kind):
    """Other tensors, under a card that has their digest: what a SHA-256 alone does not notice."""
    content = (folder / f"{kind}.safetensors").read_bytes()[:-4] + b"\1\2\3\4"
    (folder / f"{kind}.safetensors").write_bytes(content)
    card = json.loads((folder / f"{kind}.json").read_text()) | {"sha256": sha256(content)}
    (folder / f"{kind}.json").write_text(json.dumps(card))


def change_card(folder, kind):
    card = json.loads((folder / f"{kind}.json").read_text())
    (folder / f"{kind}.json").write_text(json.dumps(card | {"classes": card["classes"][::-1]}))


def change_tensors(folder, kind):
    content = (folder / f"{kind}.safetensors").read_bytes()
    (folder / f"{kind}.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def exchange_signatures(folder, kind):
    """That of another folder of the same bundle."""
    other = folder.parent / "south" if kind == "node" else folder.parent / "clients" / "south"
    source = other if other.exists() else folder
    name = "node.sig" if source is other else f"{kind}.sig"
    (folder / f"{kind}.sig").write_bytes((source / name).read_bytes())


@pytest.mark.parametrize("forge", [forge_tensors, change_card, change_tensors, exchange_signatures])
def test_whatever_is_changed_after_signing_is_noticed(signed, tmp_path, forge):
    bundle = shutil.copytree(signed[0], tmp_path / "bundle")
    for load, folder, kind in folders(bundle):
        forge(folder, kind)
        with pytest.raises(FedSPMError, match=r"was not signed|SHA-256 is another"):
            load(folder, trust=read_trusted_key(signed[2]))


def test_a_swap_needs_the_signature_too(served, signed, tmp_path, caplog):
    folder = shutil.copytree(signed[0] / "router", tmp_path / "router")
    current = ReloadableModel(folder, partial(load_router, trust=read_trusted_key(signed[2])))
    old = current.model
    forge_tensors(folder, "router")
    with caplog.at_level(logging.WARNING, "fedspm.serve"):
        asyncio.run(current.refresh())
    assert current.model is old
    assert "was not signed with the key that is trusted" in caplog.text


def test_on_the_command_line(served, signed, tmp_path):
    _, key, public = signed
    fedspm("export", served[1], "--out", tmp_path / "bundle", "--sign", key)
    assert load_router(tmp_path / "bundle" / "router", trust=read_trusted_key(public))
    export(Run.open(served[1]), tmp_path / "bundle")  # replaces the signed one, and leaves no signature behind
    assert not list(tmp_path.rglob("*.sig"))
    refused = fedspm("serve", "node", tmp_path / "bundle" / "clients" / "north", "--trust", public, check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "is not signed" in refused.stderr


def test_keys_of_other_kinds_are_refused_in_a_sentence(signed, tmp_path):
    subprocess.run(["openssl", "ecparam", "-genkey", "-name", "prime256v1", "-out", tmp_path / "ec"], check=True)
    for path, why in ((tmp_path / "ec", "another kind than Ed25519"), (signed[2], "not a private key")):
        with pytest.raises(FedSPMError, match=why):
            read_signing_key(path)
    with pytest.raises(FedSPMError, match="is not a public key"):
        read_trusted_key(signed[1])
    with pytest.raises(FedSPMError, match="cannot be read: No such file"):
        read_trusted_key(tmp_path / "missing")
