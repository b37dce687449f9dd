"""The command line: a file a group of commands, in the order `fedspm --help` lists them."""

from fedspm.cli.app import main

from fedspm.cli import train, compare, experiment, look, serve, data, data_check, bench  # isort: skip  (each adds commands)

__all__ = ["bench", "compare", "data", "data_check", "experiment", "look", "main", "serve", "train"]
