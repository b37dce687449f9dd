"""The pictures of the paper's appendix on heterogeneity, of any data set: `fedspm data plot`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedspm.base.files import explained, write_atomically
from fedspm.data.catalog.sources import Images, load_data
from fedspm.data.federation import Federation
from fedspm.data.heterogeneity import shifted
from fedspm.data.partition import draw_mixing, partition_by_class
from fedspm.data.readers.draft import Draft
from fedspm.data.settings import OWN
from fedspm.report import data_figures, figures
from fedspm.runs.config import Config

ALPHAS = (0.5, 1.0, 2.0)  # concentrations, as the paper varies them


def plot_data(config: Config, alpha_inter: Sequence[float], alpha_intra: Sequence[float], out: Path) -> list[Path]:
    """Write every picture as png and svg: of a pool of images three, of data that comes divided what can be seen."""
    loaded = None if config.data.name == OWN else load_data(config.data.name, config.data.path, config.data.size)
    if loaded is None or isinstance(loaded, Federation | Draft):
        drawn = _divided(loaded if isinstance(loaded, Federation) else config.federation())
    else:
        drawn = _constructed(config, loaded, alpha_inter, alpha_intra)
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in drawn.items():
        for kind in ("png", "svg"):
            write_atomically(out / f"{name}.{kind}", figures.rendered(figure, kind))
        written.append(out / f"{name}.png")
    return written


def _constructed(
    config: Config, images: Images, alpha_inter: Sequence[float], alpha_intra: Sequence[float]
) -> dict[str, Figure]:
    """The classes are those of the images, before labels are permuted."""
    pixels, labels, classes = images
    how, m = config.heterogeneity, config.data.clients
    names = [f"client-{i}" for i in range(m)]
    divided, mixing = {}, {}
    for alpha in alpha_inter:
        parts = partition_by_class(labels, m, alpha, config.seed)
        divided[f"$\\alpha_\\mathrm{{inter}}$ = {alpha:g}"] = np.stack(
            [np.bincount(labels[rows], minlength=len(classes)) for rows in parts]
        )
    for alpha in alpha_intra:
        mixing[f"$\\alpha_\\mathrm{{intra}}$ = {alpha:g}"] = draw_mixing(m, how.true_components, alpha, config.seed)
    return {
        "shifts": data_figures.shifted_sample(shifted(pixels[0], how), names),
        "labels": data_figures.label_distribution(divided, names, classes),
        "mixing": data_figures.mixing_by_alpha(mixing, names),
    }


def _divided(federation: Federation) -> dict[str, Figure]:
    """Labels, and images or how far features are apart; nothing was shifted, so there is no more to show."""
    counts = data_figures.label_counts(federation)
    labels = data_figures.label_distribution({"": counts}, federation.names, federation.classes.tolist())
    if len(federation.shape) == 3:
        return {"labels": labels, "rows": data_figures.client_rows(federation)}
    return {"labels": labels, "features": data_figures.feature_means(federation)}
