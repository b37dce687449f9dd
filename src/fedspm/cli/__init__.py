"""The command line: a file a group of commands, in the order `fedspm --help` lists them."""

from fedspm.cli.app import main

from fedspm.cli import train, compare, look, federation, bench  # isort: skip  (importing a file adds its commands)

__all__ = ["bench", "compare", "federation", "look", "main", "train"]
