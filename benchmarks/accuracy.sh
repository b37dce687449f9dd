#!/usr/bin/env bash
# The accuracy figures of benchmarks/README.md: Fashion-MNIST, 8 clients, 200-round schedule, seeds 0-2, test rows.
# Needs the four idx files (Debian: dataset-fashion-mnist). About 12 minutes a run of 200 rounds on two cores.
set -euo pipefail
out=${1:-runs/accuracy}
for seed in 0 1 2; do
  fedspm train --data fashion-mnist --seed $seed --out "$out/default-c3-seed$seed"
  fedspm train --data fashion-mnist --seed $seed --components 1 --out "$out/default-c1-seed$seed"
  fedspm train --data fashion-mnist --seed $seed --preset paper --out "$out/paper-c3-seed$seed"
done
python "$(dirname "$0")/accuracy_table.py" "$out"/*
