"""fedspm export: who gets what, and that both halves together answer as the whole."""

import json

import numpy as np
import pytest
import torch

from fedspm.algorithms.fedspm import FedSPM
from fedspm.checkpoints import Checkpoint
from fedspm.config import resolve
from fedspm.core.local import chunks
from fedspm.errors import DamagedFile, FedSPMError
from fedspm.evaluation import Model
from fedspm.manifest import site_manifest
from fedspm.runs import Run, task_of
from fedspm.serve.bundle import load_node, load_router
from fedspm.serve.export import AtSite, export, export_site
from fedspm.serve.processes import nodes_of
from fedspm.training import begin, one_round
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
    sight = router.look(piece)
    assert router.card.settings.components == sight.components.shape[2]
    assert np.array_equal(sight.posterior, model.route(x))
    assert torch.allclose(sight.components.sum(2), torch.ones(len(x), 3))
    for name, folder in zip(router.card.names, router.card.folders, strict=True):
        node = load_node(tmp_path / "bundle" / "clients" / folder)
        assert node.card.names == [name]
        assert node.card.version == router.card.version
        answer = node.answer(piece, sight.features)
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
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("ten years of work")
    with pytest.raises(FedSPMError, match="is not a bundle"):
        export(run, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()


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
    from fedspm.engines.store import Store
    from postbox import loop_engine

    block = {"encoder": "mlp", "dimension": 4, "batch_size": 32}
    config = across_sites(resolve({"components": 2, "predictor": block, "router": block}), vectors)
    algorithm = FedSPM(config, task_of(vectors))
    engine = loop_engine(vectors, algorithm, tmp_path / "sites")
    shared = one_round(algorithm, engine, begin(algorithm, engine), 0)
    engine.count(shared)  # every training ends with an evaluation
    model = Model(algorithm, shared, list(engine.private_states().values()))

    run = Run(tmp_path / "run")
    run.path.mkdir()
    (run.path / "config.toml").write_text(config.to_toml())
    run.describe(site_manifest(algorithm, vectors.classes))
    run.save(Checkpoint(1, 0.0, shared, {}), keep=1)
    done = export(run, tmp_path / "bundle")
    assert done.clients == []
    assert [path.name for path in (tmp_path / "bundle").iterdir()] == ["router"]
    router = load_router(tmp_path / "bundle" / "router")
    (x,) = chunks(torch.cat([part.x for part in vectors.test]))
    sight = router.look(x)
    with torch.no_grad():
        embedding = model.embed(x)
        assert torch.equal(sight.posterior, model.posterior(embedding))
        for i, site in enumerate(engine.grid.sites.values()):
            name = site.config.name
            store = Store.of(site.config.state, "run1")
            last, turn = store.last_shared()
            kept = AtSite("run1", name, store.description(), turn, last, store.newest())
            assert export_site(kept, tmp_path / name) == done.version
            node = load_node(tmp_path / name)
            assert (node.card.names, node.card.version) == ([name], router.card.version)
            assert torch.allclose(node.answer(x, sight.features), model.local(i, embedding))
    with pytest.raises(FedSPMError, match="start `fedspm serve node` at every site"), nodes_of(tmp_path / "bundle"):
        pass
