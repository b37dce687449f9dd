"""report.html: one self-contained file with what a person wants to see of a run."""

from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedspm import pictures
from fedspm.data.federation import Federation
from fedspm.data.images import encode_png
from fedspm.evaluation import Model
from fedspm.files import write_atomically
from fedspm.queries import replies
from fedspm.runs import Run

QUERIES = 6


def write_report(run: Run, model: Model, federation: Federation) -> tuple[Path, Path]:
    """Write report.html and, for images, a sample query a client; returns both paths."""
    path, samples = run.path / "report.html", run.path / "samples"
    template = jinja2.Template(Path(__file__).with_name("report.html.j2").read_text("utf-8"), autoescape=True)
    page = template.render(
        run=run.path.name,
        manifest=run.manifest,
        config=run.config.to_toml(),
        settings=run.config,
        metrics=run.last_metrics(),
        sections=_sections(run, model, federation),
    )
    write_atomically(path, page)
    if len(federation.shape) == 3 and federation.test is not None:
        samples.mkdir(exist_ok=True)
        for name, part in zip(federation.names, federation.test, strict=True):
            if len(part):
                write_atomically(samples / f"{name}.png", encode_png(part.x[0]))
    return path, samples


def _sections(run: Run, model: Model, federation: Federation) -> list[dict[str, Any]]:
    metrics = run.metrics()
    last = metrics[-1]
    sections = [_section("Accuracy over rounds", pictures.accuracy_over_rounds(metrics))]
    if "routing_confusion" in last:
        figure = pictures.routing_confusion(last["routing_confusion"], federation.names)
        sections.append(_section("Routing: where the test rows of each client went", figure))
    if all("mixing" in private for private in model.privates):
        mixing = torch.stack([private["mixing"] for private in model.privates]).numpy(force=True)
        truth = None if federation.truth is None else federation.truth.mixing.numpy()
        sections.append(_section("Mixing weights", pictures.mixing_weights(mixing, federation.names, truth)))
    sections.append(_section("Labels of each client", pictures.label_distribution(federation)))
    if len(federation.shape) == 3:
        sections.append(_section("What the clients' rows look like", pictures.transformed_samples(federation)))
        if model.algorithm.routes:
            sections.append(_section("Sample queries and their posterior over clients", _queries(model, federation)))
            if run.config.shift.permutation and federation.truth is not None:
                sections[-1]["note"] = (
                    "Label names are permuted for every client and component, so a bag may be a sandal."
                )
    return sections


def _queries(model: Model, federation: Federation) -> Figure:
    assert federation.test is not None
    images: list[Tensor] = []
    truth: list[tuple[str, str]] = []
    for name, part in list(zip(federation.names, federation.test, strict=True))[:QUERIES]:
        if len(part):
            images.append(part.x[0])
            truth.append((name, str(federation.classes[int(part.y[0])])))
    return pictures.queries(images, replies(model, torch.stack(images), np.asarray(federation.classes)), truth)


def _section(title: str, figure: Figure) -> dict[str, Any]:
    svg = pictures.rendered(figure, "svg").decode()
    return {"title": title, "svg": svg[svg.index("<svg") :]}
