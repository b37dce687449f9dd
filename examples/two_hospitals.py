"""Images and a table, laid out as Fed-ISIC2019 is: images/ID.jpg and train_test_split.csv (image,target,center,fold).

Real pictures (Fashion-MNIST) play the patients: center 1 has a yellowish camera and mostly shoes, center 2 a bluish one
and mostly tops. python examples/two_hospitals.py [ROUNDS]
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from fedspm import FederatedClassifier, Federation
from fedspm.data.catalog.fashion import NAMES, load_sample

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
classes = [NAMES.index(name) for name in ("T-shirt", "pullover", "sneaker", "ankle boot")]
cameras = {1: (1.0, 0.9, 0.6), 2: (0.7, 0.85, 1.0)}  # how strongly red, green and blue are seen
prevalence = {1: (0.1, 0.1, 0.4, 0.4), 2: (0.4, 0.4, 0.1, 0.1)}
folder = Path(tempfile.mkdtemp()) / "hospitals"
(folder / "images").mkdir(parents=True)
images, labels = load_sample()
random = np.random.default_rng(0)
with (folder / "train_test_split.csv").open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["image", "target", "center", "fold"])
    for center, patients in ((1, 240), (2, 120)):
        for number in range(patients):
            kind = random.choice(classes, p=prevalence[center])
            picture = images[random.choice(np.flatnonzero(labels == kind))]
            seen = (picture[:, :, None] * cameras[center]).astype(np.uint8)
            name = f"ISIC_{center}{number:06d}"
            Image.fromarray(seen).resize((56, 56)).save(folder / "images" / f"{name}.jpg", quality=90)
            writer.writerow([name, NAMES[kind], center, "test" if number % 5 == 0 else "train"])

federation = Federation.from_table(folder / "train_test_split.csv", size=28)
print(f"{folder}: images scaled to {federation.shape[1]} × {federation.shape[2]}, the published folds are used")
for name, train, test in zip(federation.names, federation.train, federation.test, strict=True):
    counts = ", ".join(f"{label} {int((train.y == k).sum())}" for k, label in enumerate(federation.classes))
    print(f"  center {name}: {len(train)} / {len(test)} rows; training: {counts}")

model = FederatedClassifier(components=2, rounds=rounds, predictor="cnn", settings={"em.hold": 5}).fit(federation)
metrics = model.evaluate(federation)
print(
    f"after {rounds} rounds: system accuracy {metrics['system_accuracy']:.3f} (balanced "
    f"{metrics['balanced_accuracy']:.3f}), routing {metrics['routing_accuracy']:.3f}"
)
for name, row in metrics["clients"].items():
    print(f"  center {name}: its own predictor is right on {row['accuracy']:.3f} of its {row['rows']} test rows")
print(f"the same from the command line: fedspm train --data {folder}")
