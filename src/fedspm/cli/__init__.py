"""The command line: one file per group of commands, in the order `fedspm --help` lists them."""

# isort: off
from fedspm.cli.app import main
from fedspm.cli import train, compare, experiment, inspect, serve, clients, federation, data, data_check, settings
from fedspm.cli import bench
# isort: on

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
