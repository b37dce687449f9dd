"""What happens at a site: its own rows, its own disk, and the steps that its own configuration allows.

Nothing here knows how messages arrive. A site answers what it was asked, keeps its private state, and refuses, with a
sentence, whatever it was not configured for: another algorithm, encoder or transform, sums over fewer rows, smaller
batches, and whatever its run does not need: another step, at another time, more often
(`fedspm.engines.flower.request_guard`).
"""

import json
import sys
import tomllib
import traceback
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from pydantic import Field, ValidationError

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import DamagedFile, FedSPMError, Refused
from fedspm.base.plugins import ENCODERS
from fedspm.base.schema import Strict, problem
from fedspm.base.tensors import Tensors, moved
from fedspm.data.part import Part
from fedspm.engines.flower import wire
from fedspm.engines.flower.request_guard import fingerprint, require_allowed, require_due
from fedspm.engines.flower.site_data import SiteRows, is_function, load_rows
from fedspm.engines.flower.site_store import Store, noise_secret
from fedspm.engines.local import choose_device
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.gate import require_step, take_step
from fedspm.federated.replies import PerClient
from fedspm.federated.settings import Block, Settings
from fedspm.federated.steps import Step
from fedspm.federated.task import Task
from fedspm.version import __version__


class SiteConfig(Strict):
    """site.toml: what a site is called, where its rows are, and what it is willing to do."""

    name: str = Field(min_length=1, description="how the others call this site")
    rows: str = Field(description="its rows: a safetensors file, or package.module:function (docs/deploy.md)")
    state: Path = Field(description="folder of its private state")
    algorithms: tuple[str, ...] = Field(("fedspm",), description="what may be trained here")
    encoders: tuple[str, ...] = Field(ENCODERS, description="encoders that the server may ask for")
    transforms: tuple[str, ...] = Field((), description="transforms of plugins that a run may use")
    min_count: int = Field(10, ge=1, description="no sum over fewer rows than this leaves, whatever the server asks")
    min_noise: float = Field(0.0, ge=0, description="no part in a run with a smaller privacy.noise")
    min_batch: int = Field(16, ge=1, description="no part in a run whose local steps have fewer rows")
    min_steps: int = Field(5, ge=1, description="no part in a run with fewer local steps a round")
    max_learning_rate: float = Field(0.1, gt=0, description="no part in a run with a larger learning rate")
    device: str = Field("auto", description="auto, cpu, cuda, mps")

    @classmethod
    def read(cls, path: Path) -> "SiteConfig":
        """Paths in the file are taken from where the file is."""
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
            config = cls.model_validate(values)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise FedSPMError(f"{path} cannot be read: {error}") from error
        except ValidationError as error:
            raise FedSPMError(f"{path}: {problem(error, cls)}") from error
        places: dict[str, Any] = {"state": (path.parent / config.state).resolve()}
        if not is_function(config.rows):
            places["rows"] = str((path.parent / config.rows).resolve())
        return config.model_copy(update=places)


@dataclass(frozen=True)
class Joined:
    """A run that this site takes part in."""

    algorithm: Algorithm
    train: Part
    test: Part

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
        """How the server learns who is there: name, number of rows, shape of a row, classes, names of the columns, and
        whether its values are as in image files."""
        rows = self.rows
        about = {"rows": len(rows.train), "shape": list(rows.shape), "classes": json.dumps(rows.classes.tolist())}
        about |= {"pixels": rows.pixels, "columns": json.dumps(rows.columns)}
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
        request = (tag.turn, step, fingerprint(shared, arguments, private))
        if require_allowed(run.algorithm, declared, store.requests(), request):
            store.note_request(request)
        if arrived:
            store.keep_shared(tag.turn, store.shared(tag.turn) | arrived)
        client = run.client(name, self._received(private), round, declared.rows)
        secret = self.secret if run.algorithm.settings.privacy.noise else ""
        method = getattr(run.algorithm, step)
        taken = take_step(method, declared, client, self._received(shared), self._received(arguments), secret)
        store.keep(place, None if taken.private is client.private else taken.private)
        return wire.reply_message(tag, name, len(run.train), taken.reply, {"from": list(started)})

    def _init_private(self, tag: wire.Tag, description: dict[str, Any], store: Store) -> RecordDict:
        run, name = self._taking_part(description), self.config.name
        store.describe(description)
        self._joined[store.folder.name] = run
        store.keep((tag.turn, tag.exchange), run.algorithm.init_private(run.client(name, {}, 0)))
        return wire.reply_message(tag, name, len(run.train), PerClient.of(name))

    def _declared(self, algorithm: Algorithm, name: str) -> Step:
        step = require_step(algorithm, name)
        if step.in_process_only:
            raise Refused(f"{name!r} is for clients on one machine; a site does not answer it")
        if step.when == "after training" and step.exact and algorithm.settings.privacy.noise:
            raise Refused(f"{name!r} would leave without noise, and this run has privacy.noise")
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
            self._joined[name] = self._taking_part(store.description())
        return self._joined[name]

    def _taking_part(self, description: dict[str, Any]) -> Joined:
        """The run of a description, which this site is willing to take part in."""
        self._require_willing(description)
        settings, task = self._settings(description), Task.of_description(description)
        algorithm = build_algorithm(settings, task)
        self._require_safe(algorithm)
        rows = self.rows
        if "columns" in description:  # runs of before 2026-11-18 have none
            rows = rows.arranged(description["columns"])
        train, test = (part.to(self.device) for part in rows.encoded(np.asarray(description["classes"])))
        return Joined(algorithm, train, test)

    def _settings(self, description: dict[str, Any]) -> Settings:
        try:
            return Settings.model_validate(description["settings"])
        except (ValidationError, KeyError) as error:
            raise Refused(f"the settings of this run cannot be read here: {error}") from error

    def _require_willing(self, description: dict[str, Any]) -> None:
        config, settings = self.config, self._settings(description)
        if settings.algorithm not in config.algorithms:
            raise Refused(f"this site is configured for {', '.join(config.algorithms)}, not for {settings.algorithm!r}")
        for role in ("predictor", "router"):
            if (encoder := getattr(settings, role).encoder) not in config.encoders:
                raise Refused(f"this site is not configured for the {role} encoder {encoder!r}")
        if others := [name for name in settings.wire.transforms if name not in config.transforms]:
            raise Refused(f"this site is not configured for the transform {others[0]!r} of wire.transforms")
        if settings.min_count < config.min_count:
            raise Refused(
                f"the server asks for sums over {settings.min_count} rows, this site's min_count is {config.min_count}"
            )
        if settings.privacy.noise < config.min_noise:
            raise Refused(
                f"the run has privacy.noise = {settings.privacy.noise:g}, this site's min_noise is {config.min_noise:g}"
            )
        if config.name not in description["names"]:
            raise Refused(f"{config.name!r} is not one of the sites of this run")

    def _require_safe(self, algorithm: Algorithm) -> None:
        """No run whose replies would give rows away: updates from few rows, exact sums where noise is wanted. A block
        without steps sends what it got, and is never refused."""
        config, settings = self.config, algorithm.settings
        for role in sorted({encoder.role for encoder in algorithm.encoders}):
            block: Block = getattr(settings, role)
            if not block.steps:
                continue
            if block.batch_size < config.min_batch:
                raise self._too("small", f"{role}.batch_size = {block.batch_size}", "min_batch")
            if len(self.rows.train) < config.min_batch:
                raise self._too("few", f"batches of this site's {len(self.rows.train)} rows", "min_batch")
            if block.steps < config.min_steps:
                raise self._too("few", f"{role}.steps = {block.steps}", "min_steps")
            if (rate := algorithm.learning_rate(role)) > config.max_learning_rate:
                raise self._too("large", f"{role}.learning_rate = {rate:g}", "max_learning_rate")
        used = algorithm.steps_in_use().values()
        exact = {step.name: step.when for step in used if step.exact and step.when in ("start", "round")}
        exact.pop("describe", None)  # sums over all rows, once: nothing is standardised without them
        if config.min_noise and exact:
            remedy = 'set em.start = "random"' if set(exact.values()) == {"start"} else "train another method"
            raise Refused(
                f"this run sends sums without noise ({', '.join(exact)}), and min_noise of site {config.name!r} is "
                f"{config.min_noise:g}; {remedy}"
            )

    def _too(self, what: str, found: str, limit: str) -> Refused:
        own = getattr(self.config, limit)
        return Refused(f"the run has {found}, too {what} for site {self.config.name!r}, whose {limit} is {own:g}")
