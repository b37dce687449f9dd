"""Run folders: configuration, manifest, checkpoints."""
