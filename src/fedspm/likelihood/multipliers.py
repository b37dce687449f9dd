"""The Lagrange multipliers of empirical likelihood (eq. 6), exactly.

Given rows g_j ∈ R^q, find λ with

    Σ_j g_j / (1 + λᵀ g_j) = 0,   1 + λᵀ g_j > 0   for all j,

then the baseline weights r_j = 1 / (n (1 + λᵀ g_j)) sum to one and satisfy Σ_j r_j g_j = 0. λ minimises the convex
function D(λ) = −Σ_j log(1 + λᵀ g_j), and Newton's step for it is a least-squares problem: with
A_j = g_j / (1 + λᵀ g_j), the gradient is −Aᵀ1 and the Hessian AᵀA, so the step minimises ‖A δ − 1‖.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linprog

from fedspm.errors import FedSPMError

TOLERANCE = 1e-9  # of |Σr − 1| and |Σ r g|
DEPENDENT = 1e-11  # singular values below this share of the largest count as zero
QUADRATIC = 0.25  # Newton decrement from which full steps of a self-concordant function converge quadratically
ITERATIONS = 200
Array = np.ndarray


class Infeasible(FedSPMError):
    """The constraints have no solution: every row lies on one side of a hyperplane through zero, and some off it."""

    def __init__(self, direction: Array):
        super().__init__(
            "the multiplier system has no solution: zero is not in the relative interior of the convex hull of the "
            "rows of g; along `direction` no row is negative and some are positive"
        )
        self.direction = direction


class NotConverged(FedSPMError):
    """Neither a solution nor a proof that there is none was found."""


@dataclass(frozen=True)
class Multipliers:
    """The solution of eq. 6."""

    multipliers: Array  # λ, (q,): of those that give the same weights, the one of smallest norm
    weights: Array  # r, (n,)
    sum_log_weights: float  # Σ_j log r_j
    residual: float  # the larger of |Σ r − 1| and max_c |Σ_j r_j g_jc|
    iterations: int


def solve_multipliers(g: ArrayLike | None = None, *, log_ratio: ArrayLike | None = None) -> Multipliers:
    """λ and r for the (n, q) matrix g, or for g = exp(log_ratio) − 1, which never overflows."""
    rows = _rows(g, log_ratio)
    n, q = rows.scaled.shape
    size = np.linalg.norm(rows.scaled, axis=0)
    size[size == 0] = 1
    v = rows.scaled / size  # columns of length one; in these units λ is λ · size
    space = _RowSpace(v)
    start = np.full(q, 1 / (q + 1)) * size
    start = start if (rows.one + v @ start > 0).all() else np.zeros(q)
    x, iterations = _newton(space.columns, rows.one, space.coordinates(start))
    s = rows.one + space.columns @ x
    tilted = v / s[:, None]
    moments = np.abs(tilted.mean(0)) * size  # |Σ_j r_j g_j|: the scale of a row cancels
    weights = np.exp(-rows.log_scale) / (n * s)
    residual = float(max(abs(weights.sum() - 1), moments.max(initial=0)))
    unbalanced = moments / np.maximum(1, np.abs(tilted).mean(0) * size)  # relative where g is large
    if not max(abs(weights.sum() - 1), unbalanced.max(initial=0)) <= TOLERANCE:
        direction = _separating(v, space.back(x))
        if direction is not None:
            direction = direction / size
            raise Infeasible(direction / np.linalg.norm(direction))
        raise NotConverged(f"the multipliers did not converge in {iterations} iterations: residual {residual:.1e}")
    log_weights = -np.log(n) - rows.log_scale - np.log(s)
    return Multipliers(space.shortest(x, size), weights, float(log_weights.sum()), residual, iterations)


class _RowSpace:
    """Orthonormal columns with the same span as those of v: nearly parallel columns do no harm to Newton's method."""

    def __init__(self, v: Array):
        q, r = np.linalg.qr(v)
        u, values, vt = np.linalg.svd(r)
        kept = values > DEPENDENT * max(values[0], 1e-300)
        self.columns = q @ u[:, : len(values)][:, kept]
        self._v, self._values, self._axes = v, values[kept], vt[: len(values)][kept]
        self._null = np.concatenate([vt[: len(values)][~kept], vt[len(values) :]])

    def coordinates(self, x: Array) -> Array:
        return np.asarray(self.columns.T @ (self._v @ x))

    def back(self, x: Array) -> Array:
        """The shortest of the coefficients of v that say the same."""
        return np.asarray(self._axes.T @ (x / self._values))

    def shortest(self, x: Array, size: Array) -> Array:
        """Of all λ with the same weights the shortest, in the units of g."""
        found = self.back(x) / size
        if not len(self._null):
            return np.asarray(found)
        basis = np.linalg.qr((self._null / size).T)[0]
        return np.asarray(found - basis @ (basis.T @ found))


@dataclass(frozen=True)
class _Rows:
    """1 + λᵀ g_j = exp(log_scale_j) (one_j + λᵀ scaled_j), with all of `one` and `scaled` at most one in size."""

    scaled: Array
    one: Array
    log_scale: Array


def _rows(g: ArrayLike | None, log_ratio: ArrayLike | None) -> _Rows:
    if (g is None) == (log_ratio is None):
        raise FedSPMError("give either g or log_ratio")
    given = np.array(g if log_ratio is None else log_ratio, dtype=np.float64)
    given = given[:, None] if given.ndim == 1 else given
    if given.ndim != 2 or 0 in given.shape:
        raise FedSPMError(f"an (n, q) matrix is needed, not an array of shape {given.shape}")
    if np.isnan(given).any() or (given == np.inf).any() or (log_ratio is None and np.isinf(given).any()):
        raise FedSPMError("the matrix has values that are not finite")
    if log_ratio is None:
        log_scale = np.log(np.maximum(1, np.abs(given).max(1)))
        scale = np.exp(-log_scale)
        return _Rows(given * scale[:, None], scale, log_scale)
    log_scale = np.maximum(0, given.max(1))
    scale = np.exp(-log_scale)
    small = given < 30  # there expm1 is exact where the ratio is near one, and does not overflow
    ratio = np.exp(np.where(small, -np.inf, given) - log_scale[:, None]) - scale[:, None]
    near = np.expm1(np.where(small, given, 0)) * scale[:, None]
    return _Rows(np.where(small, near, ratio), scale, log_scale)


def _newton(v: Array, one: Array, x: Array) -> tuple[Array, int]:
    """Minimise −Σ log(one + v x) by Newton's method, kept where all arguments are positive.

    If it meets a direction along which all of them grow, which rules out a minimum, it returns that.
    """
    s = one + v @ x
    if v.shape[1] == 0:  # every g is zero
        return x, 0
    previous = np.inf
    for iteration in range(1, ITERATIONS + 1):
        a = v / s[:, None]
        step = _least_squares(a)
        along = a @ step  # how far each log's argument moves, relative to itself
        if along.min() > 0:  # every log can grow for ever: a proof that there is no minimum
            return step, iteration
        decrement = float(np.linalg.norm(along))
        if decrement <= 1e-13 * len(s) ** 0.5 or (decrement < 1e-8 and decrement > previous / 2):
            return x, iteration
        previous = decrement
        length = 1.0 if decrement < QUADRATIC else _line_search(along)
        x = x + length * step
        s = one + v @ x
        if not (s > 0).all():  # rounding at the edge of the feasible set
            return x - length * step, iteration
    return x, ITERATIONS


def _line_search(along: Array) -> float:
    """A step at which −Σ log(1 + t · along_j) has fallen enough; its slope at zero is −‖along‖²."""
    lowest = along.min()
    length = min(1.0, 0.99 / -lowest) if lowest < 0 else 1.0
    slope = float(along @ along)
    while np.log1p(length * along).sum() < 1e-4 * length * slope and length > 1e-12:
        length /= 2
    return length


def _least_squares(a: Array) -> Array:
    """argmin ‖a x − 1‖ of smallest norm in equilibrated columns.

    By the normal equations where they keep half of the digits, which is plenty for a step that is corrected by the
    next; else from a QR factorisation, which tells dependent columns from nearly dependent ones.
    """
    normal, right = a.T @ a, a.sum(0)
    size = np.sqrt(normal.diagonal().copy())
    size[size == 0] = 1
    values, vectors = np.linalg.eigh(normal / size / size[:, None])
    if values[0] > 1e-9:
        return np.asarray(vectors @ (vectors.T @ (right / size) / values) / size)
    q, r = np.linalg.qr(a / size)
    u, values, vt = np.linalg.svd(r, full_matrices=False)
    kept = values > DEPENDENT * values[0] if values[0] > 0 else np.zeros(len(values), bool)
    projected = u.T[kept] @ q.sum(0)
    return np.asarray(vt[kept].T @ (projected / values[kept]) / size)


def _separating(v: Array, x: Array) -> Array | None:
    """A direction d with v d ≥ 0 and v d ≠ 0; there is one if and only if the system has no solution."""
    along = v @ x
    if (along >= 0).all() and along.max() > 0:
        return x
    found = linprog(-v.sum(0), A_ub=-v, b_ub=np.zeros(len(v)), bounds=(-1, 1), method="highs")
    if found.status != 0:
        return None
    along = v @ found.x  # the program allows small violations: what it found must separate beyond them
    return np.asarray(found.x) if along.max() > 0 and along.min() >= -1e-9 * along.max() else None
