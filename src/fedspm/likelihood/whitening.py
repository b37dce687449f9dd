"""A basis brought to a scale at which it can be computed with."""

import warnings
from dataclasses import dataclass

import numpy as np

from fedspm.base.errors import FedSPMError

Array = np.ndarray
DEPENDENT = 1e-13  # a column of which less is left when the others are taken away counts as their combination
LOST, LOSING = 1e-2, 1e-5  # rounding as a share of what a column says: refused above the first, told above the second
WHOLE = 2.0**50  # whole numbers below are meant: by chance, not all doubles of this size are whole
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
        _require_digits(features, r, weight[:, None] / spread.astype(float))
        turn = np.linalg.inv(r / r[0, 0]).astype(Long)  # its first column stays the constant
        turn[1:] /= spread[:, None]
        back = turn.copy()
        back[0] -= centre @ turn[1:]
        return cls(_turned(features, centre, turn), back.astype(float), centre, turn)

    def of(self, features: Array) -> Array:
        if features.shape[1] != len(self.centre):
            raise FedSPMError(f"the basis made {features.shape[1]} columns here and {len(self.centre)} of the samples")
        return _turned(features, self.centre, self.turn)


def _require_digits(features: Array, r: Array, scale: Array) -> None:
    """Refuse a basis whose rounding is as large as what its columns say, and warn where it is not much smaller.

    A value q is known to ε/2 · |q|, since it was rounded when the basis was made. What column k says is what is left of
    it when all other columns and the constant are taken away: of length 1 / ‖row k of R⁻¹‖, for (1, q) scaled = Q R.
    """
    said = 1 / np.linalg.norm(np.linalg.inv(r)[1:], axis=1)
    rounded = EPSILON / 2 * np.linalg.norm(features * scale, axis=0)
    exact = (features == np.rint(features)).all(0) & (np.abs(features).max(0) < WHOLE)
    share = np.where(exact, 0, rounded / said)
    if (worst := share.max()) <= LOSING:
        return
    column = int(np.argmax(share))
    largest = np.abs(features[:, column]).max()
    why = (
        f"its values reach {largest:.1e}, and their rounding is {worst:.1g} times what it says beside the others; "
        "centre the columns: subtract a constant from x before the basis is made of it"
    )
    if worst > LOST:
        raise FedSPMError(f"column {column} of the basis has lost its digits: {why}")
    warnings.warn(f"column {column} of the basis has few digits left: {why}", stacklevel=4)


def _turned(features: Array, centre: Array, turn: Array) -> Array:
    return np.asarray((turn[0] + (features - centre) @ turn[1:]).astype(float))
