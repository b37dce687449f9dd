"""Three small samples, one density-ratio fit: the picture of docs/likelihood.md."""

import sys

import matplotlib
import numpy as np
from scipy import stats

from fedspm.likelihood import fit_drm

matplotlib.use("Agg")
from matplotlib import pyplot as plt

random = np.random.default_rng(2026)
truth = [stats.norm(0, 1), stats.norm(0.5, 1.3), stats.norm(-0.4, 0.8)]
samples = [law.rvs(size, random_state=random) for law, size in zip(truth, (200, 150, 160), strict=True)]
fit = fit_drm(samples, basis=lambda x: np.c_[x, x**2])
print(fit.summary())

points = np.linspace(-4, 5, 400)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for i, colour in enumerate(("#2a6fbb", "#e07b39", "#3c9d6b")):
    left.plot(points, truth[i].cdf(points), color=colour, linewidth=1, linestyle="--")
    left.step(points, fit.cdf(i, points), color=colour, label=f"sample {i}")
    exact = np.log(truth[i].pdf(points) / truth[0].pdf(points))
    right.plot(points, fit.log_density_ratio(points)[:, i], color=colour)
    right.plot(points, exact, color=colour, linewidth=1, linestyle="--")
left.set(title="distribution functions: fitted, and true (dashed)", xlabel="x")
right.set(title="log density ratios to sample 0", xlabel="x", ylim=(-6, 4))
left.legend(frameon=False)
for i in range(3):
    error = [
        np.abs(f(points) - truth[i].cdf(points)).max()
        for f in (lambda x, i=i: fit.cdf(i, x), stats.ecdf(samples[i]).cdf.evaluate)
    ]
    print(f"sample {i}: largest error of the distribution function {error[0]:.3f}, of the empirical one {error[1]:.3f}")
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=150)
