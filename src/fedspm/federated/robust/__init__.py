"""What a server makes of replies that may be lies: impossible ones, those out of proportion, and how the rest is
averaged (`robust` in a configuration; docs/robustness.md)."""
