"""What every room stands on: errors, strict settings, files, randomness, plugins."""
