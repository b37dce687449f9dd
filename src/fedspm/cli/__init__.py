"""The command line: one file per group of commands, in the order `fedspm --help` lists them."""

from fedspm.cli import (
    bench,
    clients,
    compare,
    data,
    data_check,
    experiment,
    federation,
    inspect,
    serve,
    settings,
    train,
)  # isort: skip
from fedspm.cli.app import main

__all__ = [
    "bench",
    "clients",
    "compare",
    "data",
    "data_check",
    "experiment",
    "federation",
    "inspect",
    "main",
    "serve",
    "settings",
    "train",
]
