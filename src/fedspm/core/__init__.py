"""The contract between algorithms and engines."""
