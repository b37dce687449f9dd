"""The pictures of a report, as matplotlib figures."""

import io
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

matplotlib.rcParams |= {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedspm",
}
COLOURS = ("#2a6fbb", "#e07b39", "#3c9d6b", "#8e5ea2", "#c0504d", "#7f7f7f")
CURVES = {
    "system_accuracy": "system",
    "average_accuracy": "average",
    "routing_accuracy": "routing",
    "component_purity": "component purity",
    "balanced_accuracy": "balanced (system)",
}
SHOWN_CLIENTS = 16  # more would not be legible


def accuracy_over_rounds(metrics: Sequence[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for (key, label), colour in zip(CURVES.items(), COLOURS, strict=False):
        points = [(line["round"], line[key]) for line in metrics if key in line]
        if points:
            style = "--" if key == "component_purity" else "-"
            axes.plot(*zip(*points, strict=True), style, color=colour, label=label, marker="o", markersize=3)
    axes.set(ylabel="share", ylim=(0, 1.02))
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    _over_rounds(axes)
    return figure


def comparison_curves(methods: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]) -> Figure:
    """System and average accuracy of every method over rounds: the mean over seeds, and the range where there are more.

    The legend is in the order in which the lines end, FedSPM is drawn thick.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    colours = {title: _colour_of(i) for i, title in enumerate(methods)}
    for axes, key, name in zip(panels, ("system_accuracy", "average_accuracy"), ("system", "average"), strict=True):
        ends = {title: np.mean([lines[-1][key] for lines in seeds.values()]) for title, seeds in methods.items()}
        for title in sorted(ends, key=lambda title: -ends[title]):
            rounds, values = _common_rounds(methods[title], key)
            width = 2.4 if title.startswith("FedSPM") else 1.2
            label = f"{title}  {100 * ends[title]:.1f}"
            axes.plot(rounds, values.mean(0), color=colours[title], linewidth=width, label=label)
            if len(values) > 1:
                axes.fill_between(rounds, values.min(0), values.max(0), color=colours[title], alpha=0.2, linewidth=0)
        axes.set(ylabel=f"{name} accuracy")
        axes.legend(frameon=False, fontsize=7, loc="lower right")
        _over_rounds(axes)
        axes.tick_params(labelleft=True)
    return figure


def convergence(
    runs: Mapping[str, Any], headline: Mapping[str, tuple[Sequence[int], Sequence[float]]] | None = None
) -> Figure:
    """The paper's momentum figure: running means of ‖∇F‖² and ε̂, and the normalised sum of δ̂. `headline` are rounds and
    running means of ‖∇F‖² at normalised γ, instead of those in the fixed gauge."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    names = {
        "gradient": "$T^{-1}\\sum\\|\\nabla_\\phi F\\|^2$",
        "epsilon": "$\\bar\\varepsilon_T$",
        "delta": "$\\bar\\delta_T$",
    }
    for axes, (key, title) in zip(figure.subplots(1, 3), names.items(), strict=True):
        curves = {
            label: (bridge.compared if key == "delta" else bridge.rounds, getattr(bridge, key))
            for label, bridge in runs.items()
        }
        if key == "gradient" and headline:
            curves = {label: (rounds, np.asarray(values)) for label, (rounds, values) in headline.items()}
        for i, (label, (rounds, values)) in enumerate(curves.items()):
            axes.plot(rounds, values, color=COLOURS[i % len(COLOURS)], label=label)
        axes.set(title=title)
        positive = any((values > 0).any() for _, values in curves.values())
        if positive and key == "gradient":
            axes.set_yscale("log")
        elif key == "epsilon":
            axes.set_yscale("symlog", linthresh=1)  # often exactly zero
        _over_rounds(axes)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=7, loc="outside right upper")
    return figure


def _over_rounds(axes: Any) -> None:
    axes.set_xlabel("round")
    axes.grid(alpha=0.25)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))  # more would touch each other in a narrow panel


def _common_rounds(seeds: Mapping[int, Sequence[Mapping[str, Any]]], key: str) -> tuple[list[int], np.ndarray]:
    """Rounds that were evaluated with every seed, and (seeds, rounds) values of a metric."""
    rounds = sorted(set.intersection(*({line["round"] for line in lines} for lines in seeds.values())))
    return rounds, np.array([[line[key] for line in lines if line["round"] in rounds] for lines in seeds.values()])


def _colour_of(i: int) -> Any:
    """Ten dark colours, then their ten light ones."""
    return matplotlib.colormaps["tab20"].colors[(2 * i) % 20 + (2 * i) // 20]  # type: ignore[attr-defined]


class Curves(NamedTuple):
    """One panel: a metric of several methods over rounds."""

    title: str
    quantity: str
    key: str
    methods: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]  # lines by title and seed


def panel_curves(panels: Sequence[Curves], places: Mapping[str, int]) -> Figure:
    """Means over seeds; FedSPM drawn thick, every other line dashed, so that one below shows.

    A method has the colour of its place in the table, in every picture, whoever else is in it.
    """
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(max(5.2, 3.6 * columns), 3.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(grid, panels, strict=False):
        for title, seeds in panel.methods.items():
            i = places[title]
            rounds, values = _common_rounds(seeds, panel.key)
            thick = title.startswith("FedSPM")
            axes.plot(
                rounds,
                values.mean(0),
                "--" if i % 2 and not thick else "-",
                marker="o" if len(rounds) == 1 else None,
                color=_colour_of(i),
                linewidth=2.2 if thick else 1.1,
                label=title,
            )
        axes.set(ylabel=panel.quantity)
        axes.set_title(panel.title, fontsize=9)
        _over_rounds(axes)
    for axes in grid[len(panels) :]:
        axes.axis("off")
    handles = {label: line for axes in grid for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    titles = sorted(handles, key=lambda title: places[title])
    figure.legend([handles[each] for each in titles], titles, loc="outside right upper", frameon=False, fontsize=7)
    return figure


def note_above(figure: Figure, text: str) -> None:
    """A remark on the whole picture, in as many lines as it needs beside a legend at its right."""
    figure.suptitle(textwrap.fill(text, int(14 * (figure.get_figwidth() - 2))), fontsize=7)


def over_values(axis: str, quantity: str, lines: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Quantities over the values of one setting: one point per seed, a line through their means."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for colour, (label, by_value) in zip(COLOURS, lines.items(), strict=False):
        means = [np.mean(list(by_seed.values())) for by_seed in by_value.values()]
        axes.plot(range(len(by_value)), means, color=colour, marker="o", markersize=3, label=label)
        for at, by_seed in enumerate(by_value.values()):
            axes.plot([at] * len(by_seed), list(by_seed.values()), ".", color=colour, alpha=0.4)
        axes.set_xticks(range(len(by_value)), list(by_value))
    axes.set(xlabel=axis, ylabel=quantity)
    axes.grid(alpha=0.25)
    if len(lines) > 1:
        axes.legend(frameon=False)
    return figure


def rendered(figure: Figure, kind: str) -> bytes:
    """The bytes of a picture, the same every time: svg or png."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a browser has the letters that matplotlib's font lacks
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def routing_confusion(counts: Sequence[Sequence[int]], names: Sequence[str]) -> Figure:
    share = np.asarray(counts, float)
    share /= share.sum(1, keepdims=True).clip(min=1)
    size = 3.2 + 0.28 * min(len(names), 20)
    figure = Figure(figsize=(size + 0.8, size), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="routed to", ylabel="belongs to")
    name_clients(axes, names)
    axes.set_yticks(*legible(names))
    if len(names) <= SHOWN_CLIENTS:
        for i, j in np.ndindex(share.shape):
            if share[i, j] >= 0.005:
                colour = "white" if share[i, j] > 0.5 else "black"
                axes.text(j, i, f"{share[i, j]:.2f}", ha="center", va="center", color=colour, fontsize=7)
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def mixing_weights(mixing: np.ndarray, names: Sequence[str], truth: np.ndarray | None) -> Figure:
    """Learned weights, and beside them the true ones where they are known."""
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    panels = figure.subplots(1, 1 if truth is None else 2, squeeze=False)[0]
    for axes, values, title in zip(panels, (mixing, truth), ("learned", "true"), strict=False):
        assert values is not None
        stacked(axes, values, names)
        axes.set(title=title, ylim=(0, 1))
    return figure


def queries(rows: Sequence[Tensor], answers: Sequence[dict[str, Any]], truth: Sequence[tuple[str, str]]) -> Figure:
    """Sample queries: the image, the posterior over clients, what was answered and what would have been right. Where
    clients have label names of their own, the answer is there `in_words`, and so is what the row `shows`."""
    count = len(rows)
    figure = Figure(figsize=(7.6, 1.25 * count), layout="constrained")
    grid = figure.subplots(count, 2, squeeze=False, width_ratios=(1 if rows[0].ndim == 3 else 0.01, 5))
    for (left, right), row, answer, (home, label) in zip(grid, rows, answers, truth, strict=True):
        left.axis("off")
        if row.ndim == 3:
            show_image(left, row)
        likeliest = sorted(answer["posterior"], key=answer["posterior"].__getitem__)[-SHOWN_CLIENTS:]
        posterior = {name: share for name, share in answer["posterior"].items() if name in likeliest}
        colours = [COLOURS[0] if name == answer["client"] else "#b8c4d0" for name in posterior]
        right.bar(range(len(posterior)), list(posterior.values()), color=colours)
        right.set_xticks(*legible(list(posterior)), fontsize=7)
        right.set_ylim(0, 1.05)
        said = answer.get("in_words", f"predicted {plain(answer['prediction'])}")
        verdict = "✓" if str(answer["prediction"]) == label else f"✗ (is {plain(answer.get('shows', label))})"
        title = f"from {plain(home)}, routed to {plain(answer['client'])}, {said} {verdict}"
        right.set_title(title, fontsize=8, loc="left")
    return figure


def show_image(axes: Any, image: Tensor) -> None:
    """In its colours; of channels that are none, the first in shades of grey."""
    if image.shape[0] in (3, 4):
        axes.imshow(image.permute(1, 2, 0).numpy(), vmin=0, vmax=1)
    else:
        axes.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=1)


def stacked(axes: Any, values: np.ndarray, names: Sequence[str], legend: bool = True) -> None:
    """Mixing weights: one bar per client, one colour per component."""
    bottom = np.zeros(len(names))
    for c in range(values.shape[1]):
        colour = COLOURS[c % len(COLOURS)]
        axes.bar(range(len(names)), values[:, c], bottom=bottom, color=colour, label=f"component {c}")
        bottom += values[:, c]
    name_clients(axes, names)
    if legend:
        axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def name_clients(axes: Any, names: Sequence[str]) -> None:
    small = 6 if len(names) > SHOWN_CLIENTS / 2 else None
    axes.set_xticks(*legible(names), rotation=45, ha="right", rotation_mode="anchor", fontsize=small)


def legible(names: Sequence[str]) -> tuple[Sequence[int], list[str]]:
    """Where names go along an axis: of many, every second, third, … has one."""
    places = range(0, len(names), ceil(len(names) / SHOWN_CLIENTS))
    return places, [plain(names[i]) for i in places]


def plain(name: object) -> str:
    """A name that somebody else chose: not too long, and no dollar sign starts a formula."""
    text = str(name)
    return (text if len(text) <= 18 else text[:17] + "…").replace("$", r"\$")
