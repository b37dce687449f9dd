"""From a run to a bundle. Across sites the server writes the router's folder, and every site writes its own node's."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedspm.algorithms import build_algorithm, outside_code
from fedspm.base.errors import FedSPMError
from fedspm.base.files import file_names, folder_atomically, sha256
from fedspm.base.plugins import require_allowed
from fedspm.base.randomness import torch_generator
from fedspm.base.tensors import Tensors
from fedspm.data.federation import Federation
from fedspm.data.images import UNIT
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.serving import Servable
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.nn.sgd import chunks
from fedspm.runs.folder import GIVEN, Run
from fedspm.serve.bundle import FORMAT, SUFFIXES, Card, load_node, load_router, mean_row, pack, read_card, version_of
from fedspm.serve.novelty import Novelty, Sums, description

NAMED = 3  # files that a refusal lists
LOOKED_AT = 512  # rows of a client, drawn at random, that say which true component is behind one that was learnt
PURE = 0.95  # of them must agree


@dataclass(frozen=True)
class Exported:
    version: str
    clients: list[str]  # whose nodes are in the bundle; none across sites
    false_alarms: float | None  # share of held-out rows beyond the threshold that it was not set on


def export(run: Run, out: Path, false_alarms: float = 0.05, sign: Path | None = None) -> Exported:
    """Write BUNDLE/router and BUNDLE/clients/NAME; a bundle that is there already is replaced as a whole.

    Of a run across sites only BUNDLE/router: what their nodes need has never been here. `sign` is a private key.
    """
    key = _signing_key(sign)
    _require_nothing_else(out, _written(out))
    if not 0 < false_alarms < 1:
        raise FedSPMError(f"the share of false alarms must lie between 0 and 1, it is {false_alarms}")
    config = run.config
    for role in ("predictor", "router"):
        if getattr(config, role).encoder == GIVEN:
            raise FedSPMError(
                f"{run.path} was trained with a {role} network of your own, which is code; train with "
                f"{role}.encoder = 'package.module:factory', then nodes and router can import it"
            )
    algorithm, checkpoint = servable(run.algorithm(), config.algorithm), run.latest()
    algorithm.require_fit(checkpoint.shared)
    task, shared = algorithm.task, checkpoint.shared
    federation = run.federation() if run.has_rows else None
    novelty, measured = _novelty(federation, config.seed, algorithm, shared, false_alarms)
    router = algorithm.router_part(shared) | (novelty.tensors() if novelty else {})
    privates = [checkpoint.privates[name] for name in task.names] if checkpoint.privates else []
    nodes = [algorithm.node_part(i, private, shared) for i, private in enumerate(privates)]
    version = version_of([router, *nodes])
    common = {
        **_common(algorithm, version, run.classes.tolist()),
        "made_from": run.manifest["data_fingerprint"],
        "round": checkpoint.round,
        "range": run.manifest.get("range", UNIT),
    }
    folders, features = file_names(task.names) if nodes else [], _features(algorithm, shared)
    everybody = common | {
        "names": list(task.names),
        "counts": list(task.counts),
        "folders": folders,
        "false_alarms": false_alarms if novelty else None,
        "meanings": _meanings(federation, algorithm, shared) if federation else None,
    }
    with folder_atomically(out, private=True) as temporary:
        _write(temporary / "router", "router", router, everybody, key)
        for i, tensors in enumerate(nodes):
            alone = common | {"names": [task.names[i]], "counts": [task.counts[i]], "features": features}
            _write(temporary / "clients" / folders[i], "node", tensors, alone, key)
    return Exported(version, list(task.names) if nodes else [], measured)


@dataclass(frozen=True)
class SiteSnapshot:
    """What a site has of a run on its disk."""

    run: str
    name: str
    description: dict[str, Any]
    round: int
    shared: Tensors
    private: Tensors


def export_site(kept: SiteSnapshot, out: Path, allowed: Collection[str] = (), sign: Path | None = None) -> str:
    """At a site: write the folder of its own node. Returns the version, which is the router's too, because both have
    the same shared parameters. The server chose algorithm and encoders; code from outside the package is imported only
    if its name is `allowed`."""
    key = _signing_key(sign)
    _require_nothing_else(out, [f"node.{suffix}" for suffix in SUFFIXES])
    if not kept.shared:
        raise FedSPMError(f"this site has not got a model of run {kept.run} yet: no round was trained")
    settings, task = Settings.model_validate(kept.description["settings"]), Task.of_description(kept.description)
    require_allowed(outside_code(settings), allowed)
    algorithm = servable(build_algorithm(settings, task), settings.algorithm)
    algorithm.require_fit(kept.shared)
    i = task.names.index(kept.name)
    version = version_of([algorithm.router_part(kept.shared)])
    said = {
        **_common(algorithm, version, kept.description["classes"]),
        "made_from": kept.run,
        "round": kept.round,
        "range": None,  # a node gets rows, never image files
        "names": [kept.name],
        "counts": [task.counts[i]],
        "features": _features(algorithm, kept.shared),
    }
    with folder_atomically(out, private=True) as temporary:
        _write(temporary, "node", algorithm.node_part(i, kept.private, kept.shared), said, key)
    return version


def _common(algorithm: Servable, version: str, classes: list[Any]) -> dict[str, Any]:
    """What the cards of router and nodes have in common."""
    return {
        "format": FORMAT,
        "version": version,
        "settings": algorithm.settings.alone(),
        "shape": algorithm.task.shape,
        "table": algorithm.task.schema,
        "classes": classes,
    }


@torch.no_grad()
def _features(algorithm: Servable, shared: Tensors) -> dict[str, list[int]]:
    """Shapes of what the router sees in a row: a node has no router, and is probed without one."""
    x = algorithm.standardise(shared, mean_row(shared, algorithm.task.shape))
    return {name: list(value.shape[1:]) for name, value in algorithm.routing_view(shared, x).items()}


def is_current(run: Run, out: Path, false_alarms: float) -> bool:
    """Is this the bundle of the run's newest checkpoint, whole, with the folder of every client?"""
    try:
        card = load_router(out / "router", run.allowed).card
        nodes = [load_node(out / "clients" / folder, run.allowed).card for folder in card.folders]
    except FedSPMError:
        return False
    whose = zip(card.names, nodes, strict=False)  # across sites there are no nodes here
    whole = all((node.names, node.version) == ([name], card.version) for name, node in whose)
    made = (card.made_from, card.round, card.false_alarms)
    return whole and made == (run.manifest["data_fingerprint"], run.last_round(), false_alarms)


def servable(algorithm: Algorithm, name: str) -> Servable:
    """The algorithm, if a router and nodes can answer for it; otherwise an error that says why not."""
    if not algorithm.routes:
        raise FedSPMError(
            f"{name} cannot be exported: it has no model of x, so a router would not know whom to ask; "
            "train fedspm, feddrm or fedgmm"
        )
    if not isinstance(algorithm, Servable):
        raise FedSPMError(
            f"{name} cannot be exported: it does not say which part of it a router and which a node needs "
            "(fedspm.federated.serving.Servable)"
        )
    return algorithm


# -- folders -----------------------------------------------------------------------------------------------------------


def _require_nothing_else(out: Path, written: list[str]) -> None:
    """Refuse a folder that holds anything besides what an export has `written` there, because it would be deleted."""
    if out.exists() and not out.is_dir():
        raise FedSPMError(f"{out} is a file, not a folder; choose another name")
    ours = {path for pattern in written for path in out.glob(pattern)}
    files = (path for path in out.rglob("*") if path.is_symlink() or not path.is_dir())
    others = sorted(path.relative_to(out).as_posix() for path in files if path not in ours)
    if others:
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        raise FedSPMError(
            f"{out} holds {', '.join(others[:NAMED])}{more}, which a new export would delete; "
            "move what is yours elsewhere, or choose another folder"
        )


def _written(bundle: Path) -> list[str]:
    """Patterns of what an export has written there. The router's card says which nodes: a site's may lie beside it."""
    if not (bundle / "router" / "router.json").exists():
        return []
    try:
        folders = read_card(bundle / "router", "router").folders
    except FedSPMError:  # damaged, or of another format: it is to be replaced
        folders = ["*"]
    nodes = [f"clients/{folder}/node.{suffix}" for folder in folders for suffix in SUFFIXES]
    return [*(f"router/router.{suffix}" for suffix in SUFFIXES), *nodes]


def _write(folder: Path, kind: str, tensors: Tensors, said: dict[str, Any], key: bytes | None) -> None:
    """The tensors, the card that says everything else and which tensors it goes with, and its signature if wanted."""
    content = pack(tensors)
    card = Card(**said, sha256=sha256(content)).model_dump_json(indent=2).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{kind}.safetensors").write_bytes(content)
    (folder / f"{kind}.json").write_bytes(card)
    if key:
        from fedspm.serve.signature import sign_card

        (folder / f"{kind}.sig").write_bytes(sign_card(kind, card, key))


def _signing_key(path: Path | None) -> bytes | None:
    if path is None:
        return None
    from fedspm.serve.signature import read_signing_key

    return read_signing_key(path)


# -- novelty -----------------------------------------------------------------------------------------------------------


def _novelty(
    federation: Federation | None, seed: int, algorithm: Servable, shared: Tensors, false_alarms: float
) -> tuple[Novelty | None, float | None]:
    """Fitted on training rows, calibrated on one half of the held-out rows, tried on the other; None without data."""
    if federation is None or federation.test is None:
        return None, None
    novelty = Novelty.fit(_sums(federation, algorithm, shared))
    held = torch.cat([_described(algorithm, shared, part.x)[0] for part in federation.test if len(part)])
    order = torch.randperm(len(held), generator=torch_generator(seed, "novelty"))
    half = max(1, len(held) // 2)
    tuned, rest = novelty.calibrated([held[order[:half]]]), held[order[half:]]
    threshold = torch.quantile(tuned.quantiles, 1 - false_alarms)
    return tuned, float((tuned.distance(rest) > threshold).double().mean()) if len(rest) else None


def _sums(federation: Federation, algorithm: Servable, shared: Tensors) -> Sums:
    """Counts, sums and products of every client, by its components: what would travel in a real federation."""
    components = algorithm.settings.components
    groups = algorithm.task.clients * components
    found = []
    for i, part in enumerate(federation.train):
        rows, posterior = _described(algorithm, shared, part.x)
        found.append(Sums.of(rows, i * components + posterior[:, i].argmax(1), groups, algorithm.settings.min_count))
    return sum(found[1:], found[0])


@torch.no_grad()
def _described(algorithm: Servable, shared: Tensors, x: Tensor) -> tuple[Tensor, Tensor]:
    rows, components = [], []
    for piece in chunks(x):
        z = algorithm.standardise(shared, piece)
        features = algorithm.routing_view(shared, z)
        rows.append(description(z, features))
        components.append(algorithm.log_components(shared, features))
    return torch.cat(rows), torch.cat(components)


# -- label names that are permuted by construction ---------------------------------------------------------------------


def _meanings(federation: Federation, algorithm: Servable, shared: Tensors) -> dict[str, list[list[int] | None]] | None:
    """The class that each label name stands for, by client and component; None where names are not permuted.

    Components that were learnt have numbers of their own. One is taken for a true component if nearly all rows that the
    router sees in it are of that one; what it calls things is not known otherwise.
    """
    if federation.truth is None or federation.truth.naming is None:
        return None
    found: dict[str, list[list[int] | None]] = {}
    for i, (name, part) in enumerate(zip(federation.names, federation.train, strict=True)):
        _, posterior = _described(algorithm, shared, part.x[:LOOKED_AT])
        component, true = posterior[:, i].argmax(1), federation.truth.train[i][:LOOKED_AT]
        found[name] = [
            None if (c := _nearly_all(true[component == learnt])) is None else _inverse(federation.truth.naming[i, c])
            for learnt in range(algorithm.settings.components)
        ]
    return found


def _nearly_all(true: Tensor) -> int | None:
    """The true component of these rows, if they have one."""
    if not len(true):
        return None
    count = torch.bincount(true)
    return int(count.argmax()) if count.max() >= PURE * len(true) else None


def _inverse(permutation: Tensor) -> list[int]:
    inverse: list[int] = permutation.argsort().tolist()
    return inverse
