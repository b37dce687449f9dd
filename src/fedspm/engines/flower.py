"""The Flower engine: `exchange` as messages to sites. The algorithms do not know the difference.

The server holds no private state. A site that does not answer in time, or whose reply is refused, is left out of that
exchange: its row of τ stays, the mean is over the others, and it is asked again in the next.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from torch import Tensor

from fedspm.core.algorithm import Algorithm, Answer, Step, Task
from fedspm.core.replies import Reply, Rows, Tensors
from fedspm.core.traffic import Traffic
from fedspm.engines import wire
from fedspm.errors import FedSPMError, Refused, TooFewSites
from fedspm.version import __version__

In = TypeVar("In")
Out = TypeVar("Out")
GREETING = 30.0  # seconds that a node has to say who it is
EVALUATION = 9000  # exchanges of an evaluation are numbered from here: they follow a round however often it is asked


class Answers(Protocol):
    def answer(self, content: RecordDict) -> RecordDict: ...


@dataclass(frozen=True)
class Handler:
    """A message to the site of its context. Not a function inside another: Ray hands it to its workers."""

    site_of: Callable[[Context], Answers]

    def __call__(self, message: Message, context: Context) -> Message:
        return Message(self.site_of(context).answer(message.content), reply_to=message)


def client_app(site_of: Callable[[Context], Answers]) -> ClientApp:
    """The same app at every site; `site_of` finds the site."""
    app = ClientApp()
    app.train()(Handler(site_of))
    return app


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


@dataclass(frozen=True)
class Introduction:
    """What a site says of itself before a run."""

    node: int
    rows: int
    shape: tuple[int, ...]
    classes: tuple[Any, ...]
    pixels: bool  # its values are as those of image files


@dataclass(frozen=True)
class Silence:
    """A node that did not introduce itself is asked again, at longer and longer intervals."""

    until: float  # on the monotonic clock
    pause: float  # seconds


def introduce(
    post: Post, nodes: set[int], seconds: float, say: Callable[[str], None] = lambda line: None
) -> list[tuple[str, Introduction]]:
    """Who is behind these nodes, with the name that each site gives itself: several may give the same."""
    found: list[tuple[str, Introduction]] = []
    content = {node: wire.message({"tag": "join", "step": "join"}) for node in sorted(nodes)}
    for node, answer in post.send(content, seconds).items():
        header: wire.Header = {}
        try:
            header = wire.header_of(answer) if isinstance(answer, RecordDict) else {}
            classes = tuple(json.loads(header["classes"]))
            shape, pixels = tuple(map(int, header["shape"])), bool(header.get("pixels"))
            site = Introduction(node, int(header["rows"]), shape, classes, pixels)
        except (Refused, KeyError, ValueError, TypeError) as error:
            why = header.get("why", repr(error)) if isinstance(answer, RecordDict) else answer
            say(f"node {node} did not introduce itself: {why}")  # somebody else's, or gone again
            continue
        name = str(header.get("site"))
        if header.get("version") != __version__:
            say(f"site {name!r} has fedspm {header.get('version')}, this server {__version__}: install the same")
        found.append((name, site))
    return found


def by_name(sites: Iterable[tuple[str, Introduction]]) -> dict[str, Introduction]:
    found: dict[str, Introduction] = {}
    for name, site in sites:
        if name in found:
            raise FedSPMError(f"two sites call themselves {name!r}; change `name` in the site.toml of one of them")
        found[name] = site
    return found


def agreed_task(sites: dict[str, Introduction], names: Sequence[str]) -> tuple[Task, np.ndarray]:
    """The task of sites that were introduced, in the order of `names`, and its classes."""
    shapes = {sites[name].shape for name in names}
    if len(shapes) > 1:
        known = ", ".join(f"{name} {sites[name].shape}" for name in names)
        raise FedSPMError(f"the sites have rows of different shapes: {known}; all need the same")
    worded = [name for name in names if any(isinstance(label, str) for label in sites[name].classes)]
    if 0 < len(worded) < len(names):
        raise FedSPMError(f"{', '.join(worded)} have strings as labels and the other sites numbers; use one kind")
    classes = agreed_classes([sites[name].classes for name in names])
    return Task(shapes.pop(), len(classes), tuple(names), tuple(sites[name].rows for name in names)), classes


def agreed_classes(listed: Sequence[tuple[Any, ...]]) -> np.ndarray:
    """In the order in which all sites list them, as one process would have it; sorted where their lists differ."""
    if len(set(listed)) == 1:
        return np.asarray(listed[0])
    return np.unique(np.concatenate([np.asarray(each) for each in listed]))


class FlowerEngine:
    """Implements `Exchange`."""

    def __init__(
        self,
        post: Post,
        algorithm: Algorithm,
        classes: np.ndarray,
        run: str,
        nodes: dict[str, int],
        say: Callable[[str], None] = lambda line: None,
    ):
        self.algorithm, self.classes = algorithm, classes
        self.post, self.nodes, self.say = post, dict(nodes), say
        self._run = run
        self._ignored: set[int] = set()  # nodes that are no site of this run
        self._silent: dict[int, Silence] = {}  # nodes that have not said who they are
        self._turn = self._attempt = -1
        self.begin_round(0)

    @property
    def description(self) -> dict[str, Any]:
        """What a site must know of a run to take part."""
        task = self.algorithm.task
        return {
            "settings": self.algorithm.settings.alone().model_dump(mode="json"),
            "names": task.names,
            "counts": task.counts,
            "shape": task.shape,
            "classes": self.classes.tolist(),
        }

    def private_states(self) -> dict[str, Tensors]:
        """None: they are the sites'."""
        return {}

    def restore(self, round: int, privates: Mapping[str, Tensors]) -> None:
        """Nothing to do: a site finds by the tag of a message which of its private states the server means."""

    def send(self, tensors: Tensors) -> Tensors:
        return tensors

    def map(self, function: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
        return map(function, items)

    def begin_round(self, number: int, participants: Sequence[int] | None = None) -> None:
        self.round = number
        self.invite_all()
        if participants is not None:
            self._invited = tuple(self.algorithm.task.names[i] for i in participants)
        self._begin_turn(number + 1)

    def invite_all(self) -> None:
        self._invited = self.algorithm.task.names

    def _begin_turn(self, turn: int) -> None:
        self._attempt = self._attempt + 1 if turn == self._turn else 0
        self._turn, self._exchange = turn, 0
        self.traffic = Traffic()
        self.absent: dict[str, str] = {}  # who was left out of an exchange of this round, and why
        self._sent: dict[str, Tensors] = {}  # what each site has got in this turn, and keeps

    def enrol(self, algorithm: Algorithm) -> None:
        """The start of a run: every site remembers what the run is and makes its first private state."""
        self._begin_turn(0)
        self._ask("enrol", {}, {}, {"description": json.dumps(self.description)})

    def __call__(self, step: Step[Answer], shared: Tensors, **arguments: Tensor) -> Answer:
        answer: Answer = self._ask(step.__name__, shared, arguments)  # type: ignore[assignment]
        return answer

    def count(self, shared: Tensors) -> dict[str, Tensors]:
        """What each site counts on its own test rows."""
        answer = self._ask("evaluate", shared, {})
        assert isinstance(answer, Rows)
        return answer.rows

    # -- one exchange ------------------------------------------------------------------------------------------------

    def _ask(self, step: str, shared: Tensors, arguments: Tensors, more: wire.Header | None = None) -> Reply:
        """Every site that is there takes the step; replies are folded in client order, as in process."""
        follows = step in {"personalise", "evaluate"} | self.algorithm.after
        number = self._exchange + EVALUATION if follows else self._exchange
        self._exchange += 1
        tag = wire.Tag(self._run, self._turn, number, self._attempt)
        contents: dict[int, RecordDict] = {}
        for site in self._present():
            had = self._sent.get(site, {})
            kept = [name for name, tensor in shared.items() if had.get(name) is tensor]
            new = {name: tensor for name, tensor in shared.items() if name not in kept}
            header = {"tag": str(tag), "step": step, "round": self.round, "kept": kept} | (more or {})
            contents[self.nodes[site]] = wire.request(header, new, arguments)
            self.traffic.to[site] += wire.nbytes(new) + wire.nbytes(arguments)
        answers = self.post.send(contents, self.post.waiting.seconds, self.round)
        gate = wire.Gate(self.algorithm, step, shared, tag)
        return self._merged(step, shared, gate, {site: answers.get(node) for site, node in self.nodes.items()})

    def _merged(
        self, step: str, shared: Tensors, gate: wire.Gate, answers: dict[str, RecordDict | str | None]
    ) -> Reply:
        received: list[wire.Received] = []
        refused: dict[str, str] = {}
        for site in self._invited:
            answer = answers.get(site)
            if not isinstance(answer, RecordDict):
                refused[site] = (
                    f"site {site!r}, step {step}: {answer or 'it is not connected, or does not say who it is'}"
                )
                continue
            try:
                received.append(gate.read(site, answer))
            except Refused as error:
                refused[site] = str(error)
        refused |= {site: f"site {site!r}, step {step}: {why}" for site, why in wire.outvoted(received).items()}
        for why in refused.values():
            self.say(f"left out: {why}")
        self.absent |= refused
        accepted = [each for each in received if each.site not in refused]
        self._require_enough(step, len(accepted), refused)
        merged: Reply | None = None
        for each in accepted:
            self._sent[each.site] = self._sent.get(each.site, {}) | shared
            self.traffic.receive(each.site, each.reply)
            merged = each.reply if merged is None else merged.merge(each.reply)  # type: ignore[arg-type]
        assert merged is not None
        return merged

    def _require_enough(self, step: str, accepted: int, refused: dict[str, str]) -> None:
        everybody = self._turn == 0  # the start fixes what all rounds build on
        least = self.algorithm.task.clients if everybody else self._least()
        if accepted < least:
            why = "; ".join(refused.values())
            needed = "the start needs all of them" if everybody else f"min_clients is {least}"
            raise TooFewSites(f"round {self.round}, step {step}: {accepted} sites answered, {needed} ({why})")

    def _least(self) -> int:
        """Answers without which an exchange does not count; of those that are invited."""
        return min(max(1, self.post.waiting.min_clients), len(self._invited))

    # -- who is there ------------------------------------------------------------------------------------------------

    def _present(self) -> list[str]:
        """Sites to ask now, in client order; waits for the least number, and greets those that came back."""
        names = self._invited
        least = len(names) if self._turn == 0 else self._least()
        end = time.monotonic() + self.post.waiting.seconds
        while True:
            online = self.post.online()
            self._greet(online)
            present = [name for name in names if self.nodes.get(name) in online]
            if len(present) >= least or time.monotonic() > end:
                return present
            time.sleep(min(1.0, self.post.waiting.seconds / 10))

    def _greet(self, online: set[int]) -> None:
        """A site that came back under another number is asked for its name; one that is here keeps its own."""
        strangers = online - set(self.nodes.values()) - self._ignored
        now = time.monotonic()
        if strangers := {node for node in strangers if node not in self._silent or self._silent[node].until <= now}:
            names = set(self.algorithm.task.names)
            patience = min(GREETING, self.post.waiting.seconds)
            for name, site in introduce(self.post, strangers, patience, self.say):
                if name not in names:
                    self.say(f"a node calls itself {name!r} and is ignored: no site of this run has that name")
                    self._ignored.add(site.node)
                elif self.nodes.get(name) in online:  # asked again later: the other may leave
                    self.say(f"a second node calls itself {name!r}; the first one is kept while it is connected")
                else:
                    if name in self.nodes:
                        self.say(f"site {name!r} is here again, as node {site.node}, before as {self.nodes[name]}")
                    self.nodes[name] = site.node
            for node in strangers - set(self.nodes.values()) - self._ignored:  # busy, perhaps: asked again
                pause = 2 * self._silent[node].pause if node in self._silent else patience
                self._silent[node] = Silence(time.monotonic() + pause, pause)
