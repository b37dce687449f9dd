"""How many noised vectors have left each client, whatever engine carries them: what the accountant adds up."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping


class Releases:
    """Counts by client, from the start of a run. A vector is an update Δ or a τ: a reply with both holds two.

    `keep` is handed the new counts before anything leaves that they count, so that a crash loses none.
    """

    def __init__(self, before: Mapping[str, int] | None = None, keep: Callable[[dict[str, int]], None] | None = None):
        self.of = Counter(before or {})
        self._keep = keep

    def add(self, clients: Iterable[str], count: int) -> None:
        if count:
            self.of.update(dict.fromkeys(clients, count))
            if self._keep:
                self._keep(dict(self.of))

    @property
    def most(self) -> int:
        """Of the client that sent most."""
        return max(self.of.values(), default=0)
