"""A data set: the 1,797 handwritten digits of 8 × 8 pixels that come with scikit-learn."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def load(path: Path | None) -> tuple[np.ndarray, np.ndarray, list[str]]:
    digits = load_digits()
    return (digits.images * 255 / 16).astype(np.uint8), digits.target, [str(digit) for digit in range(10)]
