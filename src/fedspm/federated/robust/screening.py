"""Updates far beyond the others' are refused: the round goes on as if their clients had not answered."""

import math
from collections.abc import Mapping
from statistics import median

import torch

from fedspm.federated.robust.blocks import WHOLE, Change
from fedspm.federated.steps import Step
from fedspm.federated.uploads import Update

SLACK = 0.25  # of the largest move, by which a value may move against what honest steps do,
DECAY = 1e-3  # and of the largest value: rounding, and a method that shrinks its parameters
FEWEST = 3  # clients that can be told apart: of two that differ nobody knows which is wrong


class Lengths:
    """How long the blocks of the clients' updates are, and how long they may be.

    Updates from few rows are longer (the noise of a gradient goes with 1/√n) and weigh less: a client with fewer rows
    than the median of the others, n, may be longer by √(n/n_i).
    """

    def __init__(self) -> None:
        self.of: dict[str, dict[str, float]] = {}  # by client and block
        self._rows: dict[str, int] = {}

    def add(self, client: str, rows: int, lengths: Mapping[str, float]) -> None:
        self.of[client], self._rows[client] = dict(lengths), rows

    def drop(self, client: str) -> None:
        del self.of[client], self._rows[client]

    def usual(self, client: str, block: str) -> float | None:
        """The median length of the others that sent this block; None if they are too few or did not move."""
        found = [each[block] for other, each in self.of.items() if other != client and block in each]
        usual = median(found) if len(found) + 1 >= FEWEST else 0.0
        return usual if usual > 0 else None

    def allowance(self, client: str) -> float:
        """√(n/n_i) of a client with few rows, else 1."""
        others = [rows for other, rows in self._rows.items() if other != client]
        return max(1.0, math.sqrt(median(others) / self._rows[client])) if others else 1.0

    def excess(self, client: str) -> dict[str, float]:
        """How many times as long as usual each block of a client is, its allowance taken off."""
        found = {}
        for block, length in self.of[client].items():
            if (usual := self.usual(client, block)) is not None:
                found[block] = length / usual / self.allowance(client)
        return found

    def times(self, client: str) -> float:
        """How many times as long as the median of the others' the longest block of a client is, of any two."""
        most = 0.0
        for block, length in self.of[client].items():
            others = [each[block] for other, each in self.of.items() if other != client and block in each]
            usual = median(others) if others else 0.0
            most = max(most, length / usual if usual > 0 else length)
        return most


def out_of_proportion(found: Lengths, most: float) -> dict[str, str]:
    """Clients whose update, but for their own rows, is longer than `most` times the median of the others', and the two
    lengths."""
    refused = {}
    for client, blocks in found.of.items():
        if found.excess(client).get(WHOLE, 0.0) > most:
            length, usual, limit = blocks[WHOLE], found.usual(client, WHOLE), most * found.allowance(client)
            assert usual is not None
            refused[client] = (
                f"its update has the length {length:.3g}, {length / usual:.3g} times the median of the others' "
                f"({usual:.3g}); more than {limit:.3g} times is refused (max_update = {most:g})"
            )
    return refused


def moved_backwards(step: Step, change: Change) -> str | None:
    """Why no local steps give this change: of a tensor that is declared `opposed` somebody else's row has risen, or all
    of the client's own have fallen. None if they could."""
    for name, value in sorted(change.of.items()):
        upload = step.upload(name)
        if not isinstance(upload, Update) or not upload.opposed:
            continue
        size = float(value.abs().max())
        slack = SLACK * size + DECAY * max(1.0, change.largest[name])
        mine = torch.arange(len(value)) == change.index
        if float(value[mine].max()) < -slack:
            return f"it lowers its own {name} by {-float(value[mine].max()):.3g}, which its rows can only raise"
        if len(value) > 1 and float(value[~mine].max()) > slack:
            return f"it raises others' {name} by {float(value[~mine].max()):.3g}, which its rows can only lower"
    return None
