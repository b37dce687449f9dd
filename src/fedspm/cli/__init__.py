"""The command line: a file a group of commands, in the order `fedspm --help` lists them."""

from fedspm.cli.app import main

from fedspm.cli import train, compare, experiment, look, serve, clients, federation, data, data_check, settings, bench  # isort: skip

__all__ = [
    "bench",
    "clients",
    "compare",
    "data",
    "data_check",
    "experiment",
    "federation",
    "look",
    "main",
    "serve",
    "settings",
    "train",
]
