"""Vectors: scikit-learn's breast-cancer data, split over three sites by a column, from a table with mixed scales.

python examples/tabular.py [ROUNDS]
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from fedspm import FederatedClassifier, Federation

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
cancer = load_breast_cancer()
texture = cancer.data[:, list(cancer.feature_names).index("mean texture")]
site = np.array(["fine", "medium", "coarse"])[np.searchsorted(np.quantile(texture, (1 / 3, 2 / 3)), texture)]
table = Path(tempfile.mkdtemp()) / "cancer.csv"
with table.open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["site", "target", *cancer.feature_names])
    for where, label, row in zip(site, cancer.target, cancer.data, strict=True):
        writer.writerow([where, cancer.target_names[label], *row])

federation = Federation.from_table(table, test_fraction=0.3)
print(f"{table}: {len(federation.columns)} features, {', '.join(federation.columns[:3])}, …")
for name, part in zip(federation.names, federation.train, strict=True):
    share = (part.y == 0).float().mean()
    print(f"  {name:6} {len(part):4} training rows, {100 * share:.0f} % {federation.classes[0]}")

model = FederatedClassifier(components=2, rounds=rounds, settings={"em.hold": 5}).fit(federation)
spread = np.argsort(model.scale_)
narrow, wide = spread[0], spread[-1]
print(
    f"features are standardised by the model: {federation.columns[narrow]!r} varies by {model.scale_[narrow]:.4f}, "
    f"{federation.columns[wide]!r} by {model.scale_[wide]:.0f}"
)
metrics = model.evaluate(federation)
print(f"after {rounds} rounds: system {metrics['system_accuracy']:.3f}, routing {metrics['routing_accuracy']:.3f}")
query = cancer.data[:1]
print(f"the first patient is from {site[0]} and {cancer.target_names[cancer.target[0]]};", end=" ")
posterior = ", ".join(f"{name} {p:.2f}" for name, p in zip(model.client_names_, model.route(query)[0], strict=True))
print(f"posterior over sites: {posterior}; predicted: {model.predict(query)[0]}")
print(f"the same from the command line: fedspm train --data {table}")
