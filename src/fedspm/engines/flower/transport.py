"""Messages to nodes, and their answers."""

import time
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedspm.base.errors import FedSPMError


@dataclass
class Waiting:
    """How long the server waits, and for how many."""

    seconds: float = 600.0  # for the answers to one exchange
    min_clients: int = 1  # answers without which an exchange does not count
    poll: float = 0.1  # seconds between looks for answers, at first; later a twentieth of the time that has passed


class Post:
    """Messages to nodes and their answers. Replies come in any order and are matched by the message they answer."""

    def __init__(self, grid: Grid, waiting: Waiting):
        self.grid, self.waiting = grid, waiting

    def online(self) -> set[int]:
        return set(self.grid.get_node_ids())

    def send(self, contents: dict[int, RecordDict], seconds: float, group: int = 0) -> dict[int, RecordDict | str]:
        """What every node answered, or why there is no answer."""
        messages = [
            Message(content, node, "train", ttl=seconds + 60, group_id=str(group)) for node, content in contents.items()
        ]
        ids = list(self.grid.push_messages(messages))
        if len(ids) != len(messages):
            raise FedSPMError(f"Flower took {len(ids)} of {len(messages)} messages; look into its log")
        open_ = {number: node for number, node in zip(ids, contents, strict=True) if number}
        answers: dict[int, RecordDict | str] = dict.fromkeys(contents, f"no answer within {seconds:g} s")
        began = time.monotonic()
        while open_ and (passed := time.monotonic() - began) < seconds:
            for reply in self.grid.pull_messages(list(open_)):
                node = open_.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    answers[node] = reply.content if reply.has_content() else f"Flower says: {reply.error.reason}"
            if open_:
                time.sleep(min(1.0, max(self.waiting.poll, passed / 20)))
        return answers
