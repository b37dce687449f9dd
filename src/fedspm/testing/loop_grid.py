"""A Flower grid without Flower's processes: messages go through the ClientApp in a loop, as bytes do, in any order."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedspm.data.federation import Federation
from fedspm.engines.flower.handshake import introduce
from fedspm.engines.flower.loopback import NO_SECRET, LoopbackEngine, site_configs
from fedspm.engines.flower.server import client_app
from fedspm.engines.flower.site import Site
from fedspm.engines.flower.transport import Post, Waiting
from fedspm.federated.algorithm import Algorithm

Between = Callable[[str, str, RecordDict], RecordDict | None]  # step, site, reply → the reply, another, or none


def unchanged(step: str, site: str, reply: RecordDict) -> RecordDict | None:
    return reply


class LoopGrid(Grid):
    """`sites` by node number. `between` may change or drop (None) a reply; `seen` has every message both ways."""

    def __init__(self, sites: Mapping[int, Site], between: Between = unchanged):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # a message cannot be made without
        self.sites = dict(sites)
        self.between = between
        self.seen: list[tuple[str, str, str, RecordDict]] = []
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count(1)
        self._app = client_app(lambda context: self.sites[context.node_id])

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *arguments: Any, **options: Any) -> Any: ...

    def get_nodes(self) -> Any: ...

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any: ...

    def get_node_ids(self) -> Iterable[int]:
        return list(self.sites)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._deliver(message) for message in messages]

    def _deliver(self, message: Message) -> str:
        number, node = str(next(self._numbers)), message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = number
        site, step = self.sites[node].config.name, str(message.content["fedspm"]["step"])
        self.seen.append(("down", site, step, message.content))
        context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
        answer = self._app(message, context).content
        self.seen.append(("up", site, step, answer))
        left = self.between(step, site, answer)
        if left is not None:
            self._replies[number] = Message(left, reply_to=message)
        return number

    def pull_messages(self, numbers: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(number) for number in sorted(numbers, reverse=True) if number in self._replies]


class LoopEngine(LoopbackEngine):
    """Sites in a loop; `grid.seen` and `said` have what they and the server said."""

    grid: LoopGrid
    said: list[str]


def loop_engine(
    federation: Federation,
    algorithm: Algorithm,
    folder: Path,
    between: Between = unchanged,
    wait: float = 0.2,
    min_clients: int = 1,
    **more: Any,
) -> LoopEngine:
    """A Flower engine whose sites are in this process, with their state under `folder`."""
    configs = site_configs(federation, algorithm, folder, "cpu")
    grid = LoopGrid({10 + i: Site(config, NO_SECRET) for i, config in enumerate(configs)}, between)
    post = Post(grid, Waiting(wait, min_clients, poll=0.01))
    nodes = {name: site.node for name, site in introduce(post, post.online(), wait)}
    said: list[str] = []
    engine = LoopEngine(post, algorithm, federation, "run1", configs, nodes, said.append, **more)
    engine.grid, engine.said = grid, said
    return engine
