"""Your own images: one folder per client, in it one folder per class. Real digits, as three schools would scan them.

python examples/own_images.py [ROUNDS]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from fedspm import FederatedClassifier, Federation

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
folder = Path(tempfile.mkdtemp()) / "schools"
digits = load_digits()
pixels = (digits.images * 255 / 16).astype(np.uint8)
scanners = {"north": lambda x: x, "south": lambda x: 255 - x, "west": lambda x: x // 2 + 60}  # south scans negatives
for j, (image, digit) in enumerate(zip(pixels[:900], digits.target, strict=False)):
    school = ("north", "south", "west")[min(j % 6, 2)]  # west is much larger than the others
    if school == "south" and digit in (8, 9):
        continue  # this school has not got so far yet
    place = folder / school / str(digit)
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray(scanners[school](image)).save(place / f"{j}.png")

federation = Federation.from_folder(folder, test_fraction=0.3)
print(f"{folder}: {len(federation.names)} clients, images of {federation.shape}, classes {federation.classes.tolist()}")
for name, train, test in zip(federation.names, federation.train, federation.test, strict=True):
    missing = sorted(set(range(10)) - set(train.y.tolist()))
    print(f"  {name:6} {len(train):4} training rows, {len(test):3} test rows, missing classes: {missing or 'none'}")

model = FederatedClassifier(components=2, rounds=rounds, predictor="cnn", settings={"em.hold": 5}).fit(federation)
metrics = model.evaluate(federation)
print(f"after {rounds} rounds: system {metrics['system_accuracy']:.3f}, routing {metrics['routing_accuracy']:.3f}")
nine = int(np.flatnonzero(digits.target == 9)[-1])
for name, scan in scanners.items():
    query = np.repeat(scan(pixels[nine])[None, None] / 255, 3, axis=1)
    posterior = model.route(query)[0]
    print(
        f"a nine as {name} scans it goes to {model.client_names_[posterior.argmax()]} ({posterior.max():.2f}), "
        f"which reads {model.predict(query)[0]}"
    )
print(f"the same from the command line: fedspm train --data {folder}")
