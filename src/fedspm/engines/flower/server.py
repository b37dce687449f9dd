"""The Flower engine: `exchange` as messages to sites. The algorithms do not know the difference.

The server holds no private state. A site that does not answer in time, or whose reply is refused, is left out of that
exchange: its row of τ stays, the mean is over the others, and it is asked again in the next.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from fedspm.base.errors import Refused, TooFewSites
from fedspm.base.tensors import Tensors, tensors_digest
from fedspm.engines.flower import wire
from fedspm.engines.flower.handshake import Silence, introduce
from fedspm.engines.flower.transport import Post
from fedspm.federated.accountant import Releases
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.exchange import Answer, ClientStep
from fedspm.federated.gate import require_step
from fedspm.federated.replies import PerClient, Reply
from fedspm.federated.robust.merging import Merging, note_suspicion
from fedspm.federated.traffic import Traffic

In = TypeVar("In")
Out = TypeVar("Out")
GREETING = 30.0  # seconds that a node has to say who it is
EVALUATION = 9000  # exchanges of an evaluation are numbered from here: they follow a round however often it is asked


class AnswersMessages(Protocol):
    def answer(self, content: RecordDict) -> RecordDict: ...


@dataclass(frozen=True)
class Handler:
    """A message to the site of its context. Not a function inside another: Ray hands it to its workers."""

    site_of: Callable[[Context], AnswersMessages]

    def __call__(self, message: Message, context: Context) -> Message:
        return Message(self.site_of(context).answer(message.content), reply_to=message)


def client_app(site_of: Callable[[Context], AnswersMessages]) -> ClientApp:
    """The same app at every site; `site_of` finds the site."""
    app = ClientApp()
    app.train()(Handler(site_of))
    return app


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
        self._have_frozen: set[str] = set()  # sites that have got what no round changes
        self._frozen_digest = ""
        self.releases = Releases()
        self.repeated: Counter[str] = Counter()  # sites say it themselves, in their logs
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
            "table": task.schema and task.schema.model_dump(mode="json"),
        }

    def private_states(self) -> dict[str, Tensors]:
        """None: they are the sites'."""
        return {}

    def leave_out(self, refused: Mapping[str, str]) -> None:
        for why in refused.values():
            self.say(f"left out: {why}")
        self.absent |= refused
        self.refused |= refused

    def undo_round(self) -> None:
        """Nothing to do, either: a round that is begun again starts from the same private states."""

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
        self.refused: dict[str, str] = {}  # those of them whose replies were no good
        self.suspicion: dict[str, float] = {}
        self._sent: dict[str, Tensors] = {}  # what each site has got in this turn, and keeps

    def init_private(self, algorithm: Algorithm) -> None:
        """The start of a run: every site remembers what the run is and makes its first private state."""
        self._begin_turn(0)
        self._ask(wire.INIT.name, {}, {}, {"description": json.dumps(self.description)})

    def __call__(self, step: ClientStep[Answer], shared: Tensors, **arguments: Tensor) -> Answer:
        answer: Answer = self._ask(step.__name__, shared, arguments)  # type: ignore[assignment]
        return answer

    def count(self, shared: Tensors) -> dict[str, Tensors]:
        """What each site counts on its own test rows."""
        answer = self._ask("evaluate", shared, {})
        assert isinstance(answer, PerClient)
        return answer.rows

    # -- one exchange ------------------------------------------------------------------------------------------------

    def _ask(self, step: str, shared: Tensors, arguments: Tensors, more: wire.Header | None = None) -> Reply:
        """Every site that is there takes the step; replies are folded in client order, as in process."""
        declared = wire.INIT if step == wire.INIT.name else require_step(self.algorithm, step)
        follows = declared.when in ("evaluation", "after training")
        number = self._exchange + EVALUATION if follows else self._exchange
        self._exchange += 1
        shared = self.algorithm.sent(shared)
        tag = wire.Tag(self._run, self._turn, number, self._attempt)
        contents: dict[int, RecordDict] = {}
        frozen = {name: value for name, value in shared.items() if name in self.algorithm.frozen_names}
        if frozen and not self._frozen_digest:
            self._frozen_digest = tensors_digest(frozen)
        asked = self._present()
        for site in asked:
            had = self._sent.get(site, {})
            moving = {name: tensor for name, tensor in shared.items() if name not in frozen}
            kept = [name for name, tensor in moving.items() if had.get(name) is tensor]
            new = {name: tensor for name, tensor in moving.items() if name not in kept}
            header = {"tag": str(tag), "step": step, "round": self.round, "kept": kept} | (more or {})
            if frozen:
                header["frozen"] = self._frozen_digest
            unknown = {} if site in self._have_frozen else frozen
            contents[self.nodes[site]] = wire.request(header, new | unknown, arguments)
            self.traffic.to[site] += wire.nbytes(new) + wire.nbytes(arguments)
        if self.algorithm.settings.privacy.noise:  # counted before it leaves, whether it arrives or not
            self.releases.add(asked, declared.most_noised(shared, self.algorithm.settings.components))
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
                if wire.is_reply(answer):
                    self.refused[site] = refused[site]
        wrong = wire.outvoted(received)
        merging = Merging(self.algorithm, gate.step, shared)
        sizes = {each.site: each.reply.nbytes for each in received}  # before they are merged into one
        for each in received:
            if each.site not in wrong:
                merging.add(each.site, each.reply)
        wrong |= merging.refuse()
        note_suspicion(self.suspicion, merging)
        doubted = {site: f"site {site!r}, step {step}: {why}" for site, why in wrong.items()}
        self.refused |= doubted
        refused |= doubted
        for why in refused.values():
            self.say(f"left out: {why}")
        self.absent |= refused
        self._have_frozen -= refused.keys()  # one that lost them gets them again
        accepted = [each for each in received if each.site not in refused]
        self._require_enough(step, len(accepted), refused)
        for each in accepted:
            self._sent[each.site] = self._sent.get(each.site, {}) | shared
            self._have_frozen |= {each.site} if self.algorithm.frozen_names & shared.keys() else set()
        self.traffic.receive({each.site: sizes[each.site] for each in accepted})
        merged = merging.result()
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
        """The least number of replies for an exchange to count, of those who are invited."""
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
