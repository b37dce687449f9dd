"""A basis brought to a scale at which it can be computed with."""

from dataclasses import dataclass

import numpy as np

from fedspm.errors import FedSPMError

Array = np.ndarray
DEPENDENT = 1e-13  # a column of which less is left when the others are taken away counts as their combination
FAR = 1e-8  # a spread is at least this share of the largest distance
EPSILON = float(np.finfo(np.float64).eps)
Long = np.longdouble


@dataclass(frozen=True)
class Whitening:
    """(1, q) made nearly uncorrelated with variances near one: all is computed there, far from the origin or not.

    Centre and spread are the median and the median distance from it, and a row far out counts for less: with mean and
    variance a row of 10⁹ would leave all others in one place. It is done in long double, to be undone exactly.
    """

    rows: Array  # of the pooled samples, (n, 1 + d)
    back: Array  # maps coefficients of the whitened columns to those of (1, q)
    centre: Array
    turn: Array  # (1, q − centre) @ turn are the whitened columns

    @classmethod
    def fitted(cls, features: Array) -> "Whitening":
        n, d = features.shape
        if n <= d:
            raise FedSPMError(f"the basis has {d} columns, too many for {n} rows")
        given = features.astype(Long)
        constant = np.ptp(features, axis=0) <= 4 * EPSILON * np.abs(features).max(0)
        if constant.any():
            raise FedSPMError(f"column {int(np.argmax(constant))} of the basis is constant; γ plays that part already")
        centre = np.median(given, axis=0)
        distance = np.abs(given - centre)
        usual = np.nanmedian(np.where(distance > 0, distance, np.nan), axis=0)  # half of a column may be one value
        spread = np.maximum(usual, FAR * distance.max(0))
        scaled = ((given - centre) / spread).astype(float)
        weight = 1 / (1 + np.abs(scaled).max(1, initial=0))
        r: Array = np.linalg.qr(np.c_[np.ones(n), scaled] * weight[:, None])[1]
        left = np.abs(r.diagonal())[1:] / np.linalg.norm(r[:, 1:], axis=0)
        if left.min() <= DEPENDENT:
            raise FedSPMError(
                f"column {int(np.argmin(left))} of the basis depends linearly on the others; leave one out"
            )
        turn = np.linalg.inv(r / r[0, 0]).astype(Long)  # its first column stays the constant
        turn[1:] /= spread[:, None]
        back = turn.copy()
        back[0] -= centre @ turn[1:]
        return cls(_turned(features, centre, turn), back.astype(float), centre, turn)

    def of(self, features: Array) -> Array:
        if features.shape[1] != len(self.centre):
            raise FedSPMError(f"the basis made {features.shape[1]} columns here and {len(self.centre)} of the samples")
        return _turned(features, self.centre, self.turn)


def _turned(features: Array, centre: Array, turn: Array) -> Array:
    return np.asarray((turn[0] + (features - centre) @ turn[1:]).astype(float))
