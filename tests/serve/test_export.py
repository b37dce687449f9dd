"""fedspm export: who gets what, and that both halves together answer as the whole."""

import json
import shutil

import numpy as np
import pytest
import torch

from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.federated.evaluation import Model
from fedspm.federated.task import Task
from fedspm.nn.sgd import chunks
from fedspm.runs.checkpoints import Checkpoint
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.runs.manifest import site_manifest
from fedspm.serve.bundle import load_node, load_router
from fedspm.serve.export import SiteSnapshot, export, export_site, is_current
from fedspm.serve.processes import local_nodes
from fedspm.training.loop import begin, one_round, train
from serving import trained


@pytest.mark.parametrize(
    ("algorithm", "settings"), [("fedspm", {}), ("feddrm", {}), ("feddrm", {"options.joint": True}), ("fedgmm", {})]
)
def test_router_and_nodes_answer_as_the_model_does(vectors, tmp_path, algorithm, settings):
    model = trained(vectors, tmp_path / "run", algorithm, **settings)
    export(Run.open(tmp_path / "run"), tmp_path / "bundle")
    router = load_router(tmp_path / "bundle" / "router")
    x = torch.cat([part.x for part in vectors.test])
    (piece,) = chunks(x)
    result = router.route(piece)
    assert router.card.settings.components == result.components.shape[2]
    assert np.array_equal(result.posterior, model.route(x))
    assert torch.allclose(result.components.sum(2), torch.ones(len(x), 3))
    for name, folder in zip(router.card.names, router.card.folders, strict=True):
        node = load_node(tmp_path / "bundle" / "clients" / folder)
        assert node.card.names == [name]
        assert node.card.version == router.card.version
        answer = node.answer(piece, result.features)
        assert np.array_equal(answer, model.predict_proba(x, client=name))


def test_the_router_has_no_head_and_a_node_nothing_of_the_others(vectors, tmp_path):
    trained(vectors, tmp_path / "run")
    export(Run.open(tmp_path / "run"), tmp_path / "bundle")
    router = load_router(tmp_path / "bundle" / "router")
    assert {name.split(".")[0] for name in router.tensors} == {"router", "tilt", "tau", "input"}
    checkpoint = Run.open(tmp_path / "run").latest()
    for i, folder in enumerate(router.card.folders):
        node = load_node(tmp_path / "bundle" / "clients" / folder)
        assert {name.split(".")[0] for name in node.tensors} == {"predictor", "head", "mixing", "tilt", "input"}
        assert torch.equal(node.tensors["tilt.xi"], checkpoint.shared["tilt.xi"][i : i + 1])
        text = (tmp_path / "bundle" / "clients" / folder / "node.json").read_text()
        others = [name for name in vectors.names if name != vectors.names[i]]
        assert not any(name in text for name in others)
    files = {path.suffix for path in (tmp_path / "bundle").rglob("*") if path.is_file()}
    assert files == {".json", ".safetensors"}


def test_what_cannot_route_is_refused_with_a_sentence(vectors, tmp_path):
    trained(vectors, tmp_path / "run", "fedavg")
    with pytest.raises(FedSPMError, match="fedavg cannot be exported: it has no model of x"):
        export(Run.open(tmp_path / "run"), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_bundle_is_replaced_and_anything_else_is_not_touched(vectors, tmp_path):
    trained(vectors, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    first = export(run, tmp_path / "bundle")
    assert export(run, tmp_path / "bundle").version == first.version
    (tmp_path / "bundle" / "router" / "router.json").write_text("{")  # damaged, and still ours
    assert export(run, tmp_path / "bundle").version == first.version
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("ten years of work")
    with pytest.raises(FedSPMError, match=r"mine holds thesis\.txt, which a new export would delete"):
        export(run, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.parametrize(
    "other", ["nodes.toml", "router/router.pem", "clients/west/west.key", "clients/east/node.json"]
)
def test_a_bundle_with_a_file_of_somebody_else_is_not_replaced(served, tmp_path, other):
    bundle = shutil.copytree(served[2], tmp_path / "bundle")
    (bundle / other).parent.mkdir(exist_ok=True)
    (bundle / other).write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in bundle.rglob("*")}
    with pytest.raises(FedSPMError, match=f"bundle holds {other}, which .* move what is yours elsewhere, or choose"):
        export(Run.open(served[1]), bundle)
    assert {path: path.stat().st_mtime_ns for path in bundle.rglob("*")} == before


def test_folders_of_sites_that_lie_beside_a_router_are_not_deleted_with_it(served, tmp_path):
    """The card of such a router lists no folders."""
    bundle = shutil.copytree(served[2], tmp_path / "bundle")
    card = json.loads((bundle / "router" / "router.json").read_text())
    (bundle / "router" / "router.json").write_text(json.dumps(card | {"folders": []}))
    with pytest.raises(FedSPMError, match=r"holds clients/north/node\.json, .* and 3 more, which"):
        export(Run.open(served[1]), bundle)
    assert (bundle / "clients" / "north" / "node.json").exists()


def test_a_file_in_place_of_the_folder_is_said(served, tmp_path):
    (tmp_path / "bundle").write_text("mine")
    with pytest.raises(FedSPMError, match="bundle is a file, not a folder; choose another name"):
        export(Run.open(served[1]), tmp_path / "bundle")
    assert (tmp_path / "bundle").read_text() == "mine"


@pytest.fixture(scope="module")
def with_rows(vectors, tmp_path_factory):
    """A run that finds its rows again, as one of the command line does: its bundle has a calibration."""
    place = tmp_path_factory.mktemp("with-rows")
    (place / "data").mkdir()
    for name, train_rows, test_rows in zip(vectors.names, vectors.train, vectors.test, strict=True):
        np.savez(place / "data" / name, x=train_rows.x, y=train_rows.y, x_test=test_rows.x, y_test=test_rows.y)
    block = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 3}
    config = resolve({"data": {"name": str(place / "data")}, "rounds": 1, "predictor": block, "router": block})
    run, federation = Run.begin(place / "run", config, "a test")
    train(config, run.algorithm(), federation, run=run)
    export(run, place / "bundle")
    return run, place / "bundle"


def cut_short(clients):
    with open(clients / "north" / "node.safetensors", "r+b") as file:
        file.truncate(200)


def gone(clients):
    shutil.rmtree(clients / "south")


def of_another_client(clients):
    shutil.copytree(clients / "south", clients / "west", dirs_exist_ok=True)


def of_another_version(clients):
    card = json.loads((clients / "north" / "node.json").read_text())
    (clients / "north" / "node.json").write_text(json.dumps(card | {"version": "0"}))


@pytest.mark.parametrize("damage", [cut_short, gone, of_another_client, of_another_version])
def test_a_bundle_is_current_only_if_the_folder_of_every_client_is(with_rows, tmp_path, damage):
    run, bundle = with_rows[0], shutil.copytree(with_rows[1], tmp_path / "bundle")
    assert is_current(run, bundle, 0.05)
    assert not is_current(run, bundle, 0.1)
    damage(bundle / "clients")
    assert not is_current(run, bundle, 0.05)
    export(run, bundle)
    assert is_current(run, bundle, 0.05)


def test_damage_is_said(vectors, tmp_path):
    trained(vectors, tmp_path / "run")
    export(Run.open(tmp_path / "run"), tmp_path / "bundle")
    router = tmp_path / "bundle" / "router"
    with pytest.raises(FedSPMError, match="is not the folder of a node"):
        load_node(router)
    card = json.loads((router / "router.json").read_text())
    (router / "router.json").write_text(json.dumps(card | {"counts": "many"}))
    with pytest.raises(DamagedFile, match="damaged at counts"):
        load_router(router)
    (router / "router.json").write_text(json.dumps(card))
    (router / "router.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(DamagedFile, match=r"router\.safetensors is damaged"):
        load_router(router)


def test_across_sites_the_server_exports_the_router_and_every_site_its_own_node(vectors, tmp_path):
    pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")
    from fedspm.deploy.demo import across_sites
    from fedspm.engines.flower.site_store import Store
    from postbox import loop_engine

    block = {"encoder": "mlp", "dimension": 4, "batch_size": 32}
    config = across_sites(resolve({"components": 2, "predictor": block, "router": block}), vectors)
    algorithm = FedSPM(config, Task.of_federation(vectors))
    engine = loop_engine(vectors, algorithm, tmp_path / "sites")
    shared = one_round(algorithm, engine, begin(algorithm, engine), 0)
    engine.count(shared)  # every training ends with an evaluation
    model = Model(algorithm, shared, list(engine.private_states().values()))

    run = Run(tmp_path / "run")
    run.path.mkdir()
    (run.path / "config.toml").write_text(config.to_toml())
    run.describe(site_manifest(algorithm, vectors.classes, pixels=False))
    run.save(Checkpoint(1, 0.0, shared, {}), keep=1)
    done = export(run, tmp_path / "bundle")
    assert done.clients == []
    assert [path.name for path in (tmp_path / "bundle").iterdir()] == ["router"]
    router = load_router(tmp_path / "bundle" / "router")
    assert router.card.range is None  # so that no image file is taken for a row
    (x,) = chunks(torch.cat([part.x for part in vectors.test]))
    result = router.route(x)
    with torch.no_grad():
        embedding = model.embed(x)
        assert torch.equal(result.posterior, model.posterior(embedding))
        for i, site in enumerate(engine.grid.sites.values()):
            name = site.config.name
            store = Store.of(site.config.state, "run1")
            last, turn = store.last_shared()
            kept = SiteSnapshot("run1", name, store.description(), turn, last, store.newest())
            assert export_site(kept, tmp_path / name) == export_site(kept, tmp_path / name) == done.version
            node = load_node(tmp_path / name)
            assert (node.card.names, node.card.version) == ([name], router.card.version)
            assert torch.allclose(node.answer(x, result.features), model.local(i, embedding))
    (tmp_path / name / "site.key").write_text("mine")
    with pytest.raises(FedSPMError, match=r"holds site\.key, which a new export would delete"):
        export_site(kept, tmp_path / name)
    assert (tmp_path / name / "site.key").exists()
    with pytest.raises(FedSPMError, match=r"site\.key is a file, not a folder"):
        export_site(kept, tmp_path / name / "site.key")
    with pytest.raises(FedSPMError, match="start `fedspm serve node` at every site"), local_nodes(tmp_path / "bundle"):
        pass
