"""Do all rows lie on one side of a hyperplane through zero? Then an empirical likelihood has no maximum.

Used of the constraints of eq. 6, and of samples that a density ratio model tells apart without error.
"""

import numpy as np
from scipy.optimize import linprog

Array = np.ndarray
EPSILON = float(np.finfo(np.float64).eps)
NEGATIVE, POSITIVE = 8 * EPSILON, 64 * EPSILON  # of Σ_k |v_jk d_k|: what lies between is rounding of d
NEARLY = (1e-12, 1e-9, 1e-6)  # of the same: what a search for d may leave of a zero
NOTHING = 1e-12  # of the largest coordinate of d: a zero that was computed


def separates(v: Array, direction: Array) -> bool:
    """Is v d ≥ 0 with some row above zero, but for the rounding of d?"""
    along = v.astype(np.longdouble) @ direction
    rounding = np.abs(v) @ np.abs(direction).astype(float)
    return bool((along >= -NEGATIVE * rounding).all() and (along > POSITIVE * rounding).any())


def separating(v: Array, guess: Array) -> Array | None:
    """A direction d with v d ≥ 0 and v d ≠ 0, or None: the guess, or what a linear program finds."""
    if (direction := on_face(v, guess)) is not None:
        return direction
    found = linprog(-v.sum(0), A_ub=-v, b_ub=np.zeros(len(v)), bounds=(-1, 1), method="highs")
    return on_face(v, np.asarray(found.x)) if found.status == 0 else None


def on_face(v: Array, direction: Array) -> Array | None:
    """The direction if it separates once the rows that it leaves near zero are put there exactly."""
    along, size = v @ direction, np.abs(v) @ np.abs(direction)
    for nearly in NEARLY:
        near, turned = v[along <= nearly * size], direction
        for _ in range(3):  # the second time removes what rounding left the first time
            if (v @ turned).max() < along.max() / 2:  # nothing but rounding may be left of it
                break
            if separates(v, turned):
                return turned
            if not len(near):
                break
            turned = turned - np.linalg.lstsq(near, near @ turned, rcond=1e-12)[0]
            turned = np.where(np.abs(turned) > NOTHING * np.abs(turned).max(), turned, 0)
    return None
