"""The Lagrange multipliers of empirical likelihood (eq. 6) and the baseline weights (eq. 5), exactly.

Given rows g_j ∈ R^q, find λ with

    Σ_j g_j / (1 + λᵀ g_j) = 0,   1 + λᵀ g_j > 0   for all j,

then the baseline weights r_j = 1 / (n (1 + λᵀ g_j)), eq. 5, sum to one and satisfy Σ_j r_j g_j = 0. λ minimises the
convex function D(λ) = −Σ_j log(1 + λᵀ g_j), and Newton's step for it is a least-squares problem: with
A_j = g_j / (1 + λᵀ g_j), the gradient is −Aᵀ1 and the Hessian AᵀA, so the step minimises ‖A δ − 1‖.

Where zero is only just inside the hull, λ is large and 1 + λᵀ g_j cancels. So rows and columns are scaled by powers of
two, which changes no digit of g, and 1 + λᵀ g_j and the gradient are summed in long double where the machine has it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedspm.base.errors import FedSPMError
from fedspm.likelihood.numbers import as_numbers
from fedspm.likelihood.separation import on_face, separates, separating

TOLERANCE = 1e-9  # of |Σr − 1| and |Σ r g|
DEPENDENT = 1e-13  # singular values below this share of the largest count as zero
INSIDE = 0.05  # of 1/(q + 1), which is left where all ratios vanish: what the first λ must leave, or zero is better
QUADRATIC = 0.25  # Newton decrement from which full steps of a self-concordant function converge quadratically
NEAR = 1e-3  # … and from which, or where columns are nearly parallel, sums are worth a long double
PARALLEL = 1e-6  # smallest singular value, as a share of the largest
LARGEST = 1e15  # log-ratio beyond which a difference of one is rounding
RISING = 1e-6  # a step along which no log's argument falls by more of itself may separate
GLANCE = 25  # iterations after which a step that goes on and on is looked at more closely
ITERATIONS = 300
Long = np.longdouble
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
    weights: Array  # r, (n,): eq. 5
    log_weights: Array  # log r, also where r itself is too small for a number
    sum_log_weights: float  # Σ_j log r_j
    residual: float  # the larger of |Σ r − 1| and max_c |Σ_j r_j g_jc|
    iterations: int


def solve_multipliers(g: ArrayLike | None = None, *, log_ratio: ArrayLike | None = None) -> Multipliers:
    """λ and r for the (n, q) matrix g, or for g = exp(log_ratio) − 1, which never overflows."""
    rows = _rows(g, log_ratio)
    n, q = rows.scaled.shape
    size = np.ldexp(1.0, _exponents(np.abs(rows.scaled).max(0)))
    v = rows.scaled / size  # in these units λ is λ · size
    space = _RowSpace(v)
    start = size / (q + 1)
    start = start if (rows.one + v @ start >= INSIDE / (q + 1) * rows.one).all() else np.zeros(q)
    x, s, iterations, runs_away = _newton(v, rows.one, start, space)
    if runs_away is not None:
        raise Infeasible(_unit(runs_away / size))
    tilted = v / s[:, None]
    moments = (np.abs(tilted.mean(0)) * size).astype(float)  # |Σ_j r_j g_j|: the scale of a row cancels
    weights = (rows.one / (n * s)).astype(float)
    residual = float(max(abs(weights.sum() - 1), moments.max(initial=0)))
    unbalanced = moments / np.maximum(1, np.abs(tilted).mean(0) * size)  # relative where g is large
    if not max(abs(weights.sum() - 1), unbalanced.max(initial=0)) <= TOLERANCE:
        direction = separating(v, x.astype(float))
        if direction is not None:
            raise Infeasible(_unit(direction / size))
        raise NotConverged(f"the multipliers did not converge in {iterations} iterations: residual {residual:.1e}")
    log_weights = -np.log(n) - rows.log_scale - np.log(s)
    with np.errstate(over="ignore"):
        multipliers = space.shortest(x, size)
    if not np.isfinite(multipliers).all():
        raise NotConverged("the multipliers are larger than a number can be: g is too small; scale its columns")
    total = float(log_weights.sum())
    return Multipliers(multipliers, weights, log_weights.astype(float), total, residual, iterations)


def _unit(direction: Array) -> Array:
    direction = direction / np.abs(direction).max()  # or the squares of a short one would vanish
    return np.asarray(direction / np.linalg.norm(direction))


class _RowSpace:
    """Orthonormal columns with the same span as those of v: nearly parallel columns do no harm to Newton's method."""

    def __init__(self, v: Array):
        q, r = np.linalg.qr(v)
        u, values, vt = np.linalg.svd(r)
        kept = values > DEPENDENT * max(values[0], 1e-300)
        self.columns = q @ u[:, : len(values)][:, kept]
        self.back = vt[: len(values)][kept].T / values[kept]  # v @ back are the columns
        self.parallel = bool(values[kept].min(initial=np.inf) < PARALLEL * values[0])
        self._null = np.concatenate([vt[: len(values)][~kept], vt[len(values) :]])

    def shortest(self, x: Array, size: Array) -> Array:
        """Of all λ with the same weights the shortest, in the units of g."""
        found = (x / size).astype(float)
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
    given = as_numbers("the matrix", g if log_ratio is None else log_ratio)
    given = given[:, None] if given.ndim == 1 else given
    if given.ndim != 2 or 0 in given.shape:
        raise FedSPMError(f"an (n, q) matrix is needed, not an array of shape {given.shape}")
    if np.isnan(given).any() or (given == np.inf).any() or (log_ratio is None and np.isinf(given).any()):
        raise FedSPMError("the matrix has values that are not finite")
    if log_ratio is not None and given.max() > LARGEST:
        raise FedSPMError(
            f"log_ratio has a value of {given.max():.1e}; beyond {LARGEST:.0e} ratios cannot be told apart"
        )
    if log_ratio is None:
        exponent = np.maximum(0, _exponents(np.abs(given).max(1)))
        scaled = np.ldexp(given, -exponent[:, None])
    else:
        exponent = np.ceil(np.maximum(0, given.max(1)) / np.log(2)).astype(int)
        far = given > 700  # its exponential may overflow, and does not notice the one
        near = np.ldexp(np.expm1(np.where(far, 0, given)), -exponent[:, None])
        scaled = np.where(far, np.exp(np.where(far, given, 0) - exponent[:, None] * np.log(2)), near)
    return _Rows(scaled, np.ldexp(1.0, -exponent), exponent * np.log(2))


def _exponents(largest: Array) -> Array:
    """e with 2ᵉ⁻¹ ≤ largest < 2ᵉ, zero for zero"""
    return np.asarray(np.frexp(largest)[1])


class _Newton(NamedTuple):
    """Where Newton's method ended."""

    x: Array
    s: Array
    iterations: int
    runs_away: Array | None = None  # a direction along which no s falls and some grow: there is no minimum


def _newton(v: Array, one: Array, start: Array, space: _RowSpace) -> _Newton:
    """Minimise −Σ log s, s = one + v x, by Newton's method, kept where all of s is positive."""
    wide = v.astype(Long)
    x = start.astype(Long)
    s = one + wide @ x
    if space.columns.shape[1] == 0:  # every g is zero
        return _Newton(x, s, 0)
    previous = np.inf
    for iteration in range(1, ITERATIONS + 1):
        a = space.columns / s.astype(float)[:, None]
        careful = space.parallel or previous < NEAR
        upwards = (space.back.T @ (wide.T @ (1 / s))).astype(float) if careful else a.sum(0)
        step = space.back @ _newton_step(a, upwards)
        moving = (wide if careful else v) @ step
        along = (moving / s).astype(float)  # how far each log's argument moves, relative to itself
        if along.min() > -RISING and separates(v, step):
            return _Newton(x, s, iteration, step)
        decrement = float(np.linalg.norm(along))
        if decrement <= 1e-15 * len(s) ** 0.5 or (careful and decrement < 1e-6 and decrement > previous / 2):
            return _Newton(x, s, iteration)
        previous = decrement
        far = decrement >= QUADRATIC
        length = _line_search(along) if far else 1.0
        moved = x + length * step
        after = s + length * moving if far else one + wide @ moved
        if not (after > 0).all():  # rounding at the edge of the feasible set
            return _Newton(x, s, iteration)
        x, s = moved, after
        if iteration % GLANCE == 0 and (found := on_face(v, step)) is not None:
            return _Newton(x, s, iteration, found)
    return _Newton(x, s, ITERATIONS)


def _line_search(along: Array) -> float:
    """A step at which −Σ log(1 + t · along_j) has fallen enough; its slope at zero is −‖along‖²."""
    lowest = along.min()
    length = min(1.0, 0.99 / -lowest) if lowest < 0 else 1.0
    slope = float(along @ along)
    while np.log1p(length * along).sum() < 1e-4 * length * slope and length > 1e-12:
        length /= 2
    return length


def _newton_step(a: Array, right: Array) -> Array:
    """x with aᵀa x = right, of smallest norm in equilibrated columns.

    By the normal equations where they keep half of the digits, which is plenty for a step that is corrected by the
    next; else from a QR factorisation, which tells dependent columns from nearly dependent ones.
    """
    size = np.abs(a).max(0)
    size[size == 0] = 1
    a = a / size
    lengths = np.linalg.norm(a, axis=0)
    lengths[lengths == 0] = 1
    a, size = a / lengths, size * lengths
    values, vectors = np.linalg.eigh(a.T @ a)
    if values[0] > 1e-9:
        return np.asarray(vectors @ (vectors.T @ (right / size) / values) / size)
    _, values, vt = np.linalg.svd(np.linalg.qr(a, mode="r"), full_matrices=False)
    kept = values > DEPENDENT * values[0]
    return np.asarray(vt[kept].T @ (vt[kept] @ (right / size) / values[kept] ** 2) / size)
