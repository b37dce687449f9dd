"""Engines: what `exchange` means."""
