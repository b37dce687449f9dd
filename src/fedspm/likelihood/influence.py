"""How much what a fit says varies from one draw of the samples to the next.

To first order a row x of sample i moves β̂ by I⁻¹ s_i(x), with I the dual information and s_i its score. Sample sizes
are fixed, so a sum of f_i(x) over all rows has the variance Σ_i n_i Var_i f_i, each under the fitted P_i.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedspm.likelihood.dual import information, inverse

Array = np.ndarray


@dataclass(frozen=True)
class Draw:
    """A sample as the fit sees it: rows drawn from P_i, each of which moves the parameters."""

    count: int
    probability: Array  # of every pooled row under P_i, (n,)
    influence: Array  # on β, (n, (m − 1)(1 + d))

    def covariance(self, f: Array) -> Array:
        """Of the sum of f over the sample, for f of every pooled row, (n, k)"""
        away = f - self.probability @ f
        return np.asarray(self.count * (away * self.probability[:, None]).T @ away)


@dataclass(frozen=True)
class Influence:
    rows: Array  # of the whitened basis, (n, 1 + d)
    probabilities: Array  # of every pooled row under every P_i, (n, m)
    counts: tuple[int, ...]
    others: Sequence[int]  # all samples but the reference

    @cached_property
    def shares(self) -> tuple[Array, Array]:
        """How much of each row belongs to each sample, and to all others: summed, never one minus the share."""
        share = self.probabilities * np.array(self.counts)
        return share, share @ (1 - np.eye(len(self.counts)))

    def scores(self, sample: int) -> Array:
        """∂/∂β of the log-likelihood of each row, were it one of this sample, (n, (m − 1)(1 + d))"""
        share, rest = self.shares
        pull = np.where(np.array(self.others) == sample, rest[:, self.others], -share[:, self.others])
        return np.asarray((pull[:, :, None] * self.rows[:, None]).reshape(len(self.rows), -1))

    @cached_property
    def inverse_information(self) -> Array:
        share, rest = self.shares
        return inverse(information(share[:, self.others], rest[:, self.others], self.rows))

    def draws(self) -> Iterator[Draw]:
        for i, count in enumerate(self.counts):
            yield Draw(count, self.probabilities[:, i], self.scores(i) @ self.inverse_information)

    def covariance(self, back: Array) -> Array:
        """Of the parameters, `back` from those of the whitened basis"""
        back = np.kron(np.eye(len(self.others)), back)
        return np.asarray(sum(draw.covariance(draw.influence @ back.T) for draw in self.draws()))

    def variance_of_mass(self, sample: int, parts: Sequence[Array]) -> Array:
        """Of what P_i gives to some parts of the rows, each a boolean (n,)"""
        mass, scores = self.probabilities[:, sample], self.scores(sample)
        inside = [np.where(part, mass, 0.0) for part in parts]
        by_parameters = [given @ scores for given in inside]
        variance = np.zeros(len(parts))
        for draw in self.draws():
            for j, (given, gradient) in enumerate(zip(inside, by_parameters, strict=True)):
                variance[j] += draw.covariance((given + draw.influence @ gradient)[:, None])[0, 0]
        return variance
