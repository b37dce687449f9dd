"""Settings chosen on validation rows, with the same budget for every method: docs/tuning.md."""
