"""What happens at a site: its own rows, its own disk, and the steps that its own configuration allows.

Nothing here knows how messages arrive. A site answers what it was asked, keeps its private state, and refuses, with a
sentence, whatever its contract does not allow (`fedspm.engines.flower.contract`), whatever its run does not need, at
another time or more often (`fedspm.engines.flower.request_guard`), and what would show a row. What leaves is written
into its ledger first (`fedspm.engines.flower.ledger`).
"""

import json
import sys
import traceback
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from pydantic import ValidationError

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import DamagedFile, FedSPMError, Refused
from fedspm.base.tensors import Tensors, moved, tensors_digest
from fedspm.data.part import Part
from fedspm.engines.flower import wire
from fedspm.engines.flower.contract import SiteConfig, broken_terms, hides_rows, require_budget, require_willing
from fedspm.engines.flower.ledger import Entry, Ledger
from fedspm.engines.flower.request_guard import fingerprint, require_allowed, require_due
from fedspm.engines.flower.site_data import SiteRows, load_rows
from fedspm.engines.flower.site_store import Store, noise_secret
from fedspm.engines.local import choose_device
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.gate import layers_seen, require_step, take_step
from fedspm.federated.replies import Combined, Mean, PerClient, Reply
from fedspm.federated.settings import Settings
from fedspm.federated.steps import Step
from fedspm.federated.task import Task
from fedspm.federated.transforms import decode
from fedspm.nn.row_inversion import rows_read
from fedspm.version import __version__


@dataclass(frozen=True)
class Joined:
    """A run that this site takes part in."""

    algorithm: Algorithm
    train: Part
    test: Part

    @cached_property
    def rows_digest(self) -> str:
        parts = {"train": self.train, "test": self.test}
        return tensors_digest({f"{kind}.{name}": getattr(part, name) for kind, part in parts.items() for name in "xy"})

    def index(self, name: str) -> int:
        return self.algorithm.task.names.index(name)

    def client(self, name: str, private: Tensors, round: int, rows: str = "train") -> Client:
        seed, part = self.algorithm.settings.seed, self.test if rows == "test" else self.train
        return Client(name, self.index(name), part.x, part.y, private, round, seed)


class Site:
    """One site. It is made once and answers many messages; everything it must remember is on its disk."""

    def __init__(self, config: SiteConfig, secret: str | None = None):
        """`secret` is what its noise follows from; its own, on its disk, if none is given."""
        self.config = config
        self.ledger = Ledger(config.state)
        self._secret = secret
        self.device = torch.device(choose_device(config.device))
        self._joined: dict[str, Joined] = {}

    @cached_property
    def rows(self) -> SiteRows:
        return load_rows(self.config.rows)

    @cached_property
    def secret(self) -> str:
        """Whoever knows it could take the noise of this site away again."""
        return noise_secret(self.config.state) if self._secret is None else self._secret

    def answer(self, content: RecordDict) -> RecordDict:
        """The reply to a message. What a person can act on becomes a refusal that the server reads."""
        tag: object = "?"
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as the in-process engine does: the same bits
        try:
            header = wire.header_of(content)
            tag = header.get("tag")
            if header.get("step") == "join":
                return self._join(tag)
            return self._step(wire.Tag.parse(tag), header, content)
        except DamagedFile as error:
            print(f"fedspm: {error}", file=sys.stderr, flush=True)  # for the site: it may tell of paths and of rows
            return wire.refusal_message(tag, self.config.name, "a file of this site cannot be read; see the site's log")
        except FedSPMError as error:
            return wire.refusal_message(tag, self.config.name, str(error))
        except Exception as error:  # without a reply the SuperNode would wait for one for ever
            traceback.print_exc()  # for the site, as above
            why = f"the step failed with {type(error).__name__}; see the site's log"
            return wire.refusal_message(tag, self.config.name, why)
        finally:
            torch.set_num_threads(threads)

    def _join(self, tag: object) -> RecordDict:
        """How the server learns who is there: name, number of rows, shape of a row, classes, whether its values are as
        in image files, and of a table what at least `min_count` rows have in common (`data.tables.agree`)."""
        rows = self.rows
        told = rows.summaries(self.config.min_count)
        columns = None if told is None else [each.model_dump(mode="json", exclude_defaults=True) for each in told]
        about = {"rows": len(rows.train), "shape": list(rows.shape), "classes": json.dumps(rows.classes.tolist())}
        about |= {"pixels": rows.pixels, "columns": json.dumps(columns)}
        return wire.message({"tag": str(tag), "site": self.config.name, "version": __version__, **about})

    def _step(self, tag: wire.Tag, header: wire.Header, content: RecordDict) -> RecordDict:
        name, step, round, place = self.config.name, str(header["step"]), int(header["round"]), (tag.turn, tag.exchange)
        store = Store.of(self.config.state, tag.run)
        if step == wire.INIT.name:
            return self._init_private(tag, json.loads(header["description"]), store)
        run = self._run(store)
        declared = self._declared(run.algorithm, step)
        require_due(run.algorithm, declared, tag.turn, round, run.index(name))
        arrived, shared = self._shared(run.algorithm, store, tag.turn, header, content)
        arguments = wire.requested(content, wire.ARGUMENTS)
        started, private = store.before(place)
        request = (tag.turn, step, fingerprint(shared, arguments, private, rows=run.rows_digest))
        entries = self.ledger.entries()
        answered = [(entry.turn, entry.step, entry.request) for entry in entries if entry.run == tag.run]
        new = require_allowed(run.algorithm, declared, answered, request)
        if arrived:
            store.keep_shared(tag.turn, store.shared(tag.turn) | arrived)
        client = run.client(name, self._received(private), round, declared.rows)
        noise = run.algorithm.settings.privacy.noise
        secret = self.secret if noise else ""
        method, there = getattr(run.algorithm, step), self._received(shared)
        taken = take_step(method, declared, client, there, self._received(arguments), secret)
        read = self._rows_shown(run, declared, there, taken.reply)
        sent = 0 if read else taken.reply.nbytes
        entry = Entry(tag.run, tag.turn, step, declared.when, request[2], sent, taken.noised, noise, read)
        if new:
            require_budget(self.config, entries, entry)
            self.ledger.append(entry)  # before anything leaves: a restart must not forget it
        if read:
            raise Refused(read)
        store.keep(place, None if taken.private is client.private else taken.private)
        return wire.reply_message(tag, name, len(run.train), taken.reply, {"from": list(started)})

    def _rows_shown(self, run: Joined, step: Step, shared: Tensors, reply: Reply) -> str:
        """Why an update is kept back: a row could be read from it. Empty if none can, or noise hides them."""
        if not self.config.show_no_row or hides_rows(run.algorithm.settings):
            return ""
        decoded = decode(run.algorithm.transforms, step, shared, reply)
        mean = decoded.mean if isinstance(decoded, Combined) else decoded
        sent = mean.as_sent()[1] if isinstance(mean, Mean) else mean.rows.get(self.config.name, {})
        if not sent.keys() & shared.keys():
            return ""
        for layer in layers_seen(run.algorithm, shared, run.train.x):
            if not sent.keys() >= {layer.weight, layer.bias}:
                continue
            if count := len(rows_read(*layer.change(shared, sent), layer.inputs)):
                return (
                    f"the update of {layer.weight!r} would show {count} row{'s' * (count > 1)} of this site and is "
                    "kept back (show_no_row): batches are too small for its rows, or the weights that were sent are "
                    "made up"
                )
        return ""

    def _init_private(self, tag: wire.Tag, description: dict[str, Any], store: Store) -> RecordDict:
        run, name = self._taking_part(description, tag.run), self.config.name
        trained = any(entry.run == tag.run and entry.turn > 0 for entry in self.ledger.entries())
        store.describe(description, trained)
        self._joined[store.folder.name] = run
        store.keep((tag.turn, tag.exchange), run.algorithm.init_private(run.client(name, {}, 0)))
        return wire.reply_message(tag, name, len(run.train), PerClient.of(name))

    def _declared(self, algorithm: Algorithm, name: str) -> Step:
        step = require_step(algorithm, name)
        if step.in_process_only:
            raise Refused(f"{name!r} is for clients on one machine; a site does not answer it")
        return step

    # -- what a message needs to be understood -----------------------------------------------------------------------

    def _shared(
        self, algorithm: Algorithm, store: Store, turn: int, header: wire.Header, content: RecordDict
    ) -> tuple[Tensors, Tensors]:
        """What came with this message, and the shared state: that, what came earlier in this turn, and what no round
        changes, which came once."""
        arrived = wire.requested(content, wire.SHARED)
        if frozen := {name: arrived.pop(name) for name in algorithm.frozen_names & arrived.keys()}:
            store.keep_frozen(frozen)
        elif "frozen" in header:
            frozen = store.frozen(str(header["frozen"]))
        earlier = store.shared(turn) | frozen
        wanted = list(header.get("kept", []))
        if lost := [name for name in wanted if name not in earlier]:
            raise Refused(f"this site no longer has {lost[0]!r}, which was sent earlier in this round")
        return arrived, frozen | {name: earlier[name] for name in wanted} | arrived

    def _received(self, tensors: Tensors) -> Tensors:
        return moved(tensors, self.device)

    def _run(self, store: Store) -> Joined:
        name = store.folder.name
        if name not in self._joined:
            self._joined[name] = self._taking_part(store.description(), name)
        return self._joined[name]

    def _taking_part(self, description: dict[str, Any], run: str) -> Joined:
        """The run of a description, which this site is willing to take part in."""
        settings, task = self._settings(description), Task.of_description(description)
        require_willing(self.config, settings, list(task.names))
        algorithm = build_algorithm(settings, task)
        before = [entry for entry in self.ledger.entries() if entry.run != run]
        for why in broken_terms(self.config, algorithm, len(self.rows.train), before):
            raise Refused(why)
        encoded = self.rows.encoded(np.asarray(description["classes"]), task.schema)
        train, test = (part.to(self.device) for part in encoded)
        return Joined(algorithm, train, test)

    def _settings(self, description: dict[str, Any]) -> Settings:
        try:
            return Settings.model_validate(description["settings"])
        except (ValidationError, KeyError) as error:
            raise Refused(f"the settings of this run cannot be read here: {error}") from error
