"""Pictures of heterogeneity: what clients and components do to an image, who has which labels, true mixing weights."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedspm.data.federation import Federation
from fedspm.data.shifts import directions
from fedspm.report.figures import COLOURS, SHOWN_CLIENTS, name_clients, plain, show_image, stacked

SHOWN_CLASSES = 30  # more would not be legible
SHOWN_FEATURES = 40


def shifted_sample(sample: Tensor, names: Sequence[str]) -> Figure:
    """One row per component, one column per client; sample is (components, clients, channels, height, width)."""
    components, clients = sample.shape[:2]
    figure = Figure(figsize=(0.85 * clients + 0.9, 0.95 * components + 0.75), layout="constrained")
    grid = figure.subplots(components, clients, squeeze=False)
    for c, row in enumerate(grid.tolist()):
        row[0].set_ylabel(f"component {c}", fontsize=7)
        for i, axes in enumerate(row):
            show_image(axes, sample[c, i])
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color="#b8c4d0", linewidth=0.6)
            if c == 0:
                axes.set_title(f"{plain(names[i])}\n{directions(i)}", fontsize=7)
    return figure


def client_rows(federation: Federation) -> Figure:
    """Three training images of every client, from the first, the middle and the last of its rows."""
    shown = min(len(federation.names), SHOWN_CLIENTS)
    figure = Figure(figsize=(0.95 * shown + 0.6, 3.3), layout="constrained")
    grid = figure.subplots(3, shown, squeeze=False)
    for i, part in enumerate(federation.train[:shown]):
        grid[0, i].set_title(plain(federation.names[i]), fontsize=7)
        for j in range(3):
            grid[j, i].axis("off")
            show_image(grid[j, i], part.x[j * (len(part) - 1) // 2])
    return figure


def label_counts(federation: Federation) -> np.ndarray:
    """(m, K): training rows of every client and class."""
    classes = len(federation.classes)
    return np.stack([np.bincount(part.y.numpy(), minlength=classes) for part in federation.train])


def label_distribution(panels: Mapping[str, np.ndarray], names: Sequence[str], classes: Sequence[object]) -> Figure:
    """A panel a title: the rows of every client as bars, below them which share of those each class has."""
    m, k = len(names), len(classes)
    width = max(2.2, 0.3 * min(m, 24)) + (0.9 if len(panels) == 1 else 0)
    height = 1.7 + 0.19 * min(max(k, 7), 36)
    figure = Figure(figsize=(width * len(panels) + 1.9, height), layout="constrained")
    grid = figure.subplots(2, len(panels), squeeze=False, sharex="col", height_ratios=(0.8, height - 1.5))
    shares = {title: counts / counts.sum(1, keepdims=True).clip(min=1) for title, counts in panels.items()}
    most = max(share.max() for share in shares.values())
    tallest = max(counts.sum(1).max() for counts in panels.values())
    for p, (title, counts) in enumerate(panels.items()):
        above, below = grid[:, p]
        above.bar(range(m), counts.sum(1), color=COLOURS[0], width=0.7)
        above.set(title=title, ylim=(0, 1.05 * tallest), ylabel="rows" if p == 0 else "")
        above.tick_params(axis="x", length=0, labelbottom=False)
        image = below.imshow(shares[title].T, cmap="Blues", vmin=0, vmax=most, aspect="auto", interpolation="none")
        name_clients(below, names)
        below.set_yticks(range(k), map(plain, classes), fontsize=7) if k <= SHOWN_CLASSES else below.set_yticks([])
        if p:
            above.tick_params(labelleft=False)
            below.tick_params(labelleft=False)
        if len(panels) == 1 and m <= SHOWN_CLIENTS and k <= SHOWN_CLASSES:
            for i, c in np.argwhere(counts):
                colour = "white" if shares[title][i, c] > 0.6 * most else "black"
                below.text(i, c, f"{counts[i, c]}", ha="center", va="center", color=colour, fontsize=6)
    figure.colorbar(image, ax=grid[1].tolist(), pad=0.02).set_label("share of the client's rows", fontsize=7)
    return figure


def mixing_by_alpha(panels: Mapping[str, np.ndarray], names: Sequence[str]) -> Figure:
    """One panel per title: true mixing weights, one bar per client."""
    width = max(2.2, 0.3 * min(len(names), 24))
    figure = Figure(figsize=(width * len(panels) + 1.3, 2.6), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for p, (title, mixing) in enumerate(panels.items()):
        stacked(grid[p], mixing, names, legend=p == len(panels) - 1)
        grid[p].set(title=title, ylim=(0, 1), ylabel="mixing weight" if p == 0 else "")
    return figure


def feature_means(federation: Federation) -> Figure:
    """Vectors: how far the mean of every client's features lies from that of all rows, in standard deviations."""
    pooled = torch.cat([part.x for part in federation.train]).double()
    pooled = torch.where(pooled.isnan(), pooled.nanmean(0), pooled)  # what is missing counts as the mean
    spread = pooled.std(0).clamp_min(1e-12)
    centred = [part.x.double().nanmean(0) - pooled.mean(0) for part in federation.train]
    means = (torch.stack(centred) / spread).nan_to_num()
    furthest = means.abs().max(0).values.argsort(descending=True)[:SHOWN_FEATURES].sort().values
    names = federation.columns or [f"x[{k}]" for k in range(pooled.shape[1])]
    m, d = len(means), len(furthest)
    figure = Figure(figsize=(max(2.4, 0.42 * min(m, 24)) + 3.2, 1.2 + 0.19 * d), layout="constrained")
    axes = figure.subplots()
    values = means[:, furthest].T.numpy()
    end = max(1.0, float(np.abs(values).max()))
    image = axes.imshow(values, cmap="RdBu_r", vmin=-end, vmax=end, aspect="auto", interpolation="none")
    name_clients(axes, federation.names)
    axes.set_yticks(range(d), [plain(names[k]) for k in furthest.tolist()], fontsize=7)
    figure.colorbar(image, ax=axes).set_label("standard deviations from the mean of all", fontsize=7)
    return figure
