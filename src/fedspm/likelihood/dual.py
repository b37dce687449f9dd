"""The dual of a density ratio model: multinomial logistic regression of the sample on the basis, without a penalty.

Shares p_ji are those of sample i in row j. Where samples are nearly separated, the share of a row's own sample is
nearly one, and what counts is the rest: it is summed from the other shares, never computed as 1 − p.
"""

import numpy as np
from scipy.special import logsumexp

from fedspm.base.errors import FedSPMError
from fedspm.likelihood.separation import POSITIVE, separating

Array = np.ndarray
ITERATIONS = 300
GLANCE = 25  # iterations after which a fit that goes on and on is asked whether the samples are separated


class Separated(FedSPMError):
    """The samples can be told apart without error by the basis: the likelihood rises for ever, there is no fit."""


def maximised(z: Array, sample: Array, others: Array, offsets: Array) -> tuple[Array, int]:
    """Maximise the dual over β (m − 1, 1 + d) by Newton's method with a line search."""
    n, size = z.shape
    each = np.arange(n)

    def scores(beta: Array) -> Array:
        all_scores = np.tile(offsets, (n, 1))
        all_scores[:, others] += z @ beta.T
        return all_scores

    beta = np.zeros((len(others), size))
    all_scores = scores(beta)
    now = log_shares(all_scores, sample)
    previous = np.inf
    apart = False
    for iteration in range(1, ITERATIONS + 1):
        share, rest = shares(all_scores, sample)
        pull = -share
        pull[each, sample] = rest[each, sample]
        gradient = (pull[:, others].T @ z).ravel()
        step = _solved(information(share[:, others], rest[:, others], z), gradient)
        if step is None:
            break  # the information has vanished: separated, as far as can be told
        gain = float(gradient @ step)
        moving = float(np.abs(z @ step.reshape(beta.shape).T).max())  # how far a score goes: about 1 where all separate
        if moving <= 1e-14 or (gain < 1e-10 and gain >= previous / 2 and moving < 1e-2):
            return beta, iteration
        previous = gain
        length = 1.0
        while True:
            candidate = beta + length * step.reshape(beta.shape)
            all_scores = scores(candidate)
            after = log_shares(all_scores, sample)
            if after >= now + 1e-4 * length * gain - 1e-14 * abs(now) or length < 1e-10:
                break
            length /= 2
        beta, now = candidate, after
        if apart := _all_at_home(z, sample, beta, all_scores - offsets):
            break
        if iteration % GLANCE == 0 and (apart := _separated(z, sample, others, beta)):
            break
    if apart or _separated(z, sample, others, beta):
        raise Separated(
            "the samples are separated by the basis: some direction tells them apart without error, so the likelihood "
            "has no maximum; use fewer basis functions or more data"
        )
    raise FedSPMError(f"the fit did not converge in {iteration} iterations: the samples are nearly separated")


def log_shares(scores: Array, sample: Array) -> float:
    """Σ_j log of how much of each row belongs to its own sample, exact where that is nearly one"""
    each = np.arange(len(sample))
    against = scores - scores[each, sample][:, None]
    against[each, sample] = -np.inf
    return -float(np.logaddexp(0, logsumexp(against, axis=1)).sum())


def shares(scores: Array, sample: Array) -> tuple[Array, Array]:
    """How much of each row belongs to each sample, p (n, m), and 1 − p, which is summed where p is nearly one."""
    share = np.exp(scores - logsumexp(scores, axis=1, keepdims=True))
    rest, each = 1 - share, np.arange(len(sample))
    foreign = share.copy()
    foreign[each, sample] = 0
    rest[each, sample] = foreign.sum(1)
    return share, rest


def information(share: Array, rest: Array, z: Array) -> Array:
    """Σ_j (diag(p_j) − p_j p_jᵀ) ⊗ z_j z_jᵀ, (k(1 + d), k(1 + d)) for k samples."""
    k, size = share.shape[1], z.shape[1]
    blocks = np.empty((k, size, k, size))
    for a in range(k):
        for b in range(a, k):
            weight = share[:, a] * (rest[:, a] if a == b else -share[:, b])
            blocks[a, :, b] = (z * weight[:, None]).T @ z
            blocks[b, :, a] = blocks[a, :, b].T
    return blocks.reshape(k * size, k * size)


def _equilibrated(matrix: Array) -> tuple[Array, Array]:
    size = np.sqrt(matrix.diagonal().clip(min=0))
    size[size == 0] = 1
    return matrix / size / size[:, None], size


def _solved(matrix: Array, right: Array) -> Array | None:
    scaled, size = _equilibrated(matrix)
    try:
        factor = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, right / size)) / size)


def inverse(matrix: Array) -> Array:
    scaled, size = _equilibrated(matrix)
    return np.asarray(np.linalg.inv(scaled) / size / size[:, None])


def _all_at_home(z: Array, sample: Array, beta: Array, scores: Array) -> bool:
    """Does β give every row its largest score at its own sample, whatever the rounding? Then it separates them."""
    each = np.arange(len(sample))
    own = scores[each, sample]
    foreign = scores.copy()
    foreign[each, sample] = -np.inf
    lead = own - foreign.max(1)
    if lead.min() <= 0:
        return False
    rounding = np.abs(z) @ np.abs(beta).max(0)  # at least that of any of a row's scores
    return bool((lead > 2 * POSITIVE * rounding).all())


def _separated(z: Array, sample: Array, others: Array, beta: Array) -> bool:
    """Is there β with (β_own − β_k)ᵀ z_j ≥ 0 for all rows j and samples k, not all of them zero? `beta` is a guess."""
    m, size = len(others) + 1, z.shape[1]
    rows = []
    for k in range(m):
        mine = np.flatnonzero(sample != k)
        block = np.zeros((len(mine), m, size))
        block[np.arange(len(mine)), sample[mine]] = z[mine]
        block[:, k] -= z[mine]
        rows.append(block[:, others].reshape(len(mine), -1))
    return separating(np.concatenate(rows), beta.ravel()) is not None
