"""A Flower grid without Flower's processes: messages go through the ClientApp in a loop, as bytes do, in any order."""

import itertools

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedspm.engines.flower.loopback import NO_SECRET, LoopbackEngine, site_configs
from fedspm.engines.flower.server import client_app
from fedspm.engines.flower.site import Site
from fedspm.engines.flower.transport import Post, Waiting, introduce
from fedspm.federated.task import Task


class LoopGrid(Grid):
    """`sites` by node number. `between` may change or drop (None) a reply; `seen` has every message both ways."""

    def __init__(self, sites, between=lambda step, site, content: content):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # a message cannot be made without
        self.sites = dict(sites)
        self.between = between
        self.seen = []
        self._replies = {}
        self._numbers = itertools.count(1)
        self._app = client_app(lambda context: self.sites[context.node_id])

    def set_run(self, run): ...

    def run(self): ...

    def create_message(self, *arguments): ...

    def get_nodes(self): ...

    def send_and_receive(self, messages, *, timeout=None): ...

    def get_node_ids(self):
        return list(self.sites)

    def push_messages(self, messages):
        return [self._deliver(message) for message in messages]

    def _deliver(self, message):
        number, node = str(next(self._numbers)), message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = number
        site, step = self.sites[node].config.name, message.content["fedspm"]["step"]
        self.seen.append(("down", site, step, message.content))
        context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
        answer = self._app(message, context).content
        self.seen.append(("up", site, step, answer))
        if (answer := self.between(step, site, answer)) is not None:
            self._replies[number] = Message(answer, reply_to=message)
        return number

    def pull_messages(self, numbers):
        return [self._replies.pop(number) for number in sorted(numbers, reverse=True) if number in self._replies]


def loop_engine(
    federation, algorithm, folder, between=lambda step, site, content: content, wait=0.2, min_clients=1, **more
):
    configs = site_configs(federation, algorithm, folder, "cpu")
    grid = LoopGrid({10 + i: Site(config, NO_SECRET) for i, config in enumerate(configs)}, between)
    post = Post(grid, Waiting(wait, min_clients, poll=0.01))
    nodes = {name: site.node for name, site in introduce(post, post.online(), wait)}
    said = []
    engine = LoopbackEngine(post, algorithm, federation, "run1", configs, nodes, said.append, **more)
    engine.grid, engine.said = grid, said
    return engine


def algorithm_of(kind, settings, federation):
    return kind(settings, Task.of_federation(federation))
