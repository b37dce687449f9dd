"""report.html: one self-contained file with what a person wants to see of a run."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from matplotlib.figure import Figure

from fedspm.base.files import file_names, write_atomically
from fedspm.data.federation import Federation
from fedspm.data.heterogeneity import own_name
from fedspm.data.images import are_pixels, encode_png
from fedspm.data.part import Truth
from fedspm.federated.accountant import sentence
from fedspm.federated.evaluation import Model
from fedspm.report import data_figures, figures
from fedspm.report.should_i_federate import as_section, should_i_federate
from fedspm.report.terminal import SCORES
from fedspm.runs.folder import Run
from fedspm.training.predict import replies

QUERIES = 6


def write_report(run: Run, model: Model, federation: Federation) -> tuple[Path, Path]:
    """Write report.html and sample queries, one image per client or a table; returns the report and what to ask."""
    path, samples = run.path / "report.html", run.path / "samples"
    template = jinja2.Template(Path(__file__).with_name("report.html.j2").read_text("utf-8"), autoescape=True)
    metrics = run.last_metrics()
    page = template.render(
        run=run.path.name,
        manifest=run.manifest,
        config=run.config.to_toml(),
        settings=run.config,
        metrics=metrics,
        privacy=sentence(metrics["privacy"]) if "privacy" in metrics else None,
        scores=SCORES,
        everybody={"all clients": metrics} | metrics["clients"],
        classes=[str(label) for label in federation.classes.tolist()],
        settings_routes=model.algorithm.routes,
        federate=as_section(should_i_federate(model, federation, run.config.seed)),
        sections=_sections(run, model, federation),
    )
    write_atomically(path, page, private=True)  # rows are to be seen in it
    return path, _write_samples(samples, federation)


def _write_samples(folder: Path, federation: Federation) -> Path:
    """The first test row of every client, in a form that `fedspm route` takes."""
    tests = [part for part in federation.test or () if len(part)]
    folder.mkdir(exist_ok=True)
    if len(federation.shape) == 3 and (federation.shape[0] not in (1, 3) or not are_pixels(federation.range)):
        archive = io.BytesIO()  # no image file holds such channels or values
        np.savez(archive, x=np.array([part.x[0].numpy() for part in tests]))
        write_atomically(folder / "queries.npz", archive.getvalue(), private=True)
        return folder / "queries.npz"
    if len(federation.shape) == 3:
        for name, part in zip(file_names(federation.names), federation.test or (), strict=False):
            if len(part):
                write_atomically(folder / f"{name}.png", encode_png(part.x[0]), private=True)
        return folder / "*.png"
    header: Sequence[str] = [f"x{k}" for k in range(federation.shape[0])]
    rows = [part.x[0].tolist() for part in tests]
    if federation.schema:
        header = federation.schema.names
        rows = [list(row.values()) for part in tests for row in federation.schema.decode(part.x[:1]).records()]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_atomically(folder / "queries.csv", text.getvalue(), private=True)
    return folder / "queries.csv"


def _sections(run: Run, model: Model, federation: Federation) -> list[dict[str, Any]]:
    metrics = run.metrics()
    last = metrics[-1]
    sections = [_section("Accuracy over rounds", figures.accuracy_over_rounds(metrics))]
    if "routing_confusion" in last:
        figure = figures.routing_confusion(last["routing_confusion"], federation.names)
        sections.append(_section("Routing: where the test rows of each client went", figure))
    found = [model.algorithm.mixing_of(private) for private in model.privates]
    weights = [mixing for mixing in found if mixing is not None]
    if len(weights) == len(found):
        mixing = torch.stack(weights).numpy(force=True)
        truth = None if federation.truth is None else federation.truth.mixing.numpy()
        sections.append(_section("Mixing weights", figures.mixing_weights(mixing, federation.names, truth)))
    elif federation.truth is not None:
        mixing = federation.truth.mixing.numpy()
        sections.append(_section("True mixing weights", data_figures.mixing_by_alpha({"": mixing}, federation.names)))
    sections.append(_section("Labels of each client", _labels(federation)))
    if federation.truth is not None and federation.truth.sample is not None:
        figure = data_figures.shifted_sample(federation.truth.sample, federation.names)
        sections.append(_section("One image, as every client and component shows it", figure))
    elif len(federation.shape) == 3:
        sections.append(_section("What the clients' rows look like", data_figures.client_rows(federation)))
    else:
        sections.append(_section("How the clients' features differ", data_figures.feature_means(federation)))
    if model.algorithm.routes and federation.test is not None:
        sections.append(_section("Sample queries and their posterior over clients", _queries(model, federation)))
        if federation.truth is not None and federation.truth.naming is not None:
            sections[-1]["note"] = (
                "Every client has label names of its own, by construction: “client-3's name for bag: sneaker” says "
                "that the image is taken for a bag, which client-3 calls a sneaker."
            )
    return sections


def _labels(federation: Federation) -> Figure:
    counts = data_figures.label_counts(federation)
    return data_figures.label_distribution({"": counts}, federation.names, federation.classes.tolist())


def _queries(model: Model, federation: Federation) -> Figure:
    assert federation.test is not None
    tested = [(name, part) for name, part in zip(federation.names, federation.test, strict=True) if len(part)][:QUERIES]
    rows = [part.x[0] for _, part in tested]
    truth = [(name, str(federation.classes[int(part.y[0])])) for name, part in tested]
    answers = replies(model, torch.stack(rows), np.asarray(federation.classes))
    if federation.truth is not None and federation.truth.naming is not None:
        for answer, (home, label) in zip(answers, truth, strict=True):
            client, said = answer["client"], answer["prediction"]
            answer["shows"] = _meant(federation, federation.truth, home, home, label)
            means = _meant(federation, federation.truth, home, client, said)
            answer["in_words"] = own_name(*map(figures.plain, (client, said, means)))
    return figures.queries(rows, answers, truth)


def _meant(federation: Federation, truth: Truth, home: str, client: str, label: str) -> str:
    """The class that a client means by a label for the first test row of `home`, whose true component is known."""
    classes, component = federation.classes.tolist(), int(truth.test[federation.names.index(home)][0])
    meant = truth.meant(federation.names.index(client), component, classes.index(label))
    return label if meant is None else str(classes[meant])


def _section(title: str, figure: Figure) -> dict[str, Any]:
    svg = figures.rendered(figure, "svg").decode()
    return {"title": title, "svg": svg[svg.index("<svg") :]}
