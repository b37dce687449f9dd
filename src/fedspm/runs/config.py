"""The configuration of a run: typed, written as TOML, strict: an unknown key is an error that names the nearest."""

import functools
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from fedspm.algorithms import outside_code
from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.base.layers import merged
from fedspm.base.plugins import NamedCode
from fedspm.base.schema import Names, Strict, problem, refuse_unknown_keys
from fedspm.data.catalog.heart import HEART
from fedspm.data.catalog.sources import NAMED, SAMPLE, Images, is_known, load_data, unknown_data
from fedspm.data.federation import Federation
from fedspm.data.heterogeneity import Heterogeneity, impose
from fedspm.data.newcomer import RowSchema, read_newcomer
from fedspm.data.part import Part
from fedspm.data.readers.draft import Draft
from fedspm.data.settings import CONSTRUCTED, DIVIDED, IN_MEMORY, OF_TABLES, OWN, Data, Shift, meaningless
from fedspm.data.tables.schema import TableSchema
from fedspm.federated.robust.rules import MEANS, RULES
from fedspm.federated.settings import OF_IMAGES, Settings

PRESETS: dict[str, dict[str, Any]] = {
    "default": {"robust": "norm", "em": {"normalisers": "exact", "e_step": "auto"}},
    # The method as printed, with a ResNet as He et al. have it: docs/decisions/0003.
    "paper": {
        "predictor": {"normalisation": "batch", "grid": 1, "learning_rate": OF_IMAGES},
        "em": {
            "start": "random",
            "hold": 0,
            "e_step": "exact",
            "normalisers": "trained",
            "scaled_steps": False,
            "server_step": 1.0,
        },
        "robust": "none",
    },
}

# What the paper sets for a data set, below the preset and below whatever a person says; `em` (decision
# 0003) and the rate of Fashion-MNIST are ours.
_CIFAR = {
    "rounds": 400,
    "em": {"hold": 40},
    "predictor": {"dimension": 64},
    "router": {"dimension": 64},
    "shift": {"inverted_channels": "green"},
}
_FASHION = {"predictor": {"learning_rate": 0.06}}  # chosen on validation rows: docs/tuning.md
OF_DATA: dict[str, dict[str, Any]] = {
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "fed-isic2019": {
        "rounds": 400,
        "predictor": {"dimension": 256, "batch_size": 32},
        "router": {"dimension": 128, "batch_size": 32},
        "data": {"size": 64},
        "em": {"server_step": 1.0},
    },
    "heart-disease": {"rounds": 60, "components": 2},
    SAMPLE: _FASHION,
    "fashion-mnist": _FASHION,
}


class Sites(Strict):
    """How a server deals with sites that are slow, gone or wrong: docs/deploy.md."""

    wait: float = Field(600.0, gt=0, description="seconds to wait for the sites' answers to one exchange")
    min_clients: int = Field(1, ge=1, description="sites that must answer, or the round is repeated")
    max_rows: int = Field(1_000_000, ge=1, description="a site that claims more training rows is refused")
    max_share: float = Field(
        0.5, gt=0, le=1, description="of three or more sites, one that claims a larger share of all rows is refused"
    )
    names: Names = Field((), description="the sites of a run across machines, as their site.toml call them")


class Config(Settings):
    preset: Literal["default", "paper"] = Field("default", description="default: measured best; paper: as printed")
    eval_every: int = Field(10, ge=1, description="rounds between evaluations, each followed by a checkpoint")
    diagnose_every: Annotated[int, Field(ge=1)] | None = Field(
        None, description="rounds between diagnoses of convergence: docs/likelihood.md"
    )
    keep_checkpoints: int = Field(2, ge=1, description="how many of the newest checkpoints to keep")
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="clients trained at the same time; auto: one a core"
    )
    clients_at_once: int = Field(
        1, ge=1, description="clients with vectors that a worker trains as one: docs/performance.md"
    )
    device: str = Field("auto", description="auto, cpu, cuda, mps")
    engine: Literal["local", "flower-simulation", "flower"] = Field(
        "local", description="local: in this process; flower-simulation: Flower and Ray; flower: across machines"
    )
    tensorboard: bool = Field(False, description="also write TensorBoard files")
    data: Data = Data()
    shift: Shift = Shift()
    sites: Sites = Sites()

    @property
    def outside_code(self) -> list[NamedCode]:
        """What is not part of this package and runs if this is trained: algorithm, encoders, transforms, robust rule,
        data set."""
        named = [NamedCode("transforms", name) for name in self.wire.transforms]
        named += [NamedCode("robust", name) for name in {self.robust} - {*MEANS, *RULES}]
        named += [NamedCode("data", name) for name in {self.data.name} - {SAMPLE, OWN, IN_MEMORY, *NAMED}]
        return outside_code(self) + named

    @property
    def outside_names(self) -> list[str]:
        return [code.name for code in self.outside_code]

    def federation(self, again: bool = False, permuted: bool = True, schema: TableSchema | None = None) -> Federation:
        """The data of this run; images are divided over clients, what comes divided is taken as it is. `again`: of a
        run that was, whose leavers may have taken their rows with them, and whose tables were encoded by `schema`; not
        `permuted`: labels say what images show."""
        if self.data.name == OWN:
            loaded: Federation | Images | Draft = self.data.own()
        else:
            loaded = load_data(self.data.name, self.data.path, self.data.size)
            if isinstance(loaded, Federation):
                self._refuse_division()
        leavers = list(self.data.without)
        if isinstance(loaded, Draft):
            leavers = loaded.leave_out(leavers)  # before anything is asked of them, enough rows for instance
            alone = not self.data.joined
            loaded = Federation.from_draft(loaded, self.data.test_fraction, self.seed, self.min_count, schema, alone)
        how = self.heterogeneity if permuted else replace(self.heterogeneity, permutation=False)
        federation = loaded if isinstance(loaded, Federation) else impose(*loaded, how, self.seed)
        if self.data.without:
            federation = federation.without([name for name in leavers if not again or name in federation.names])
        like = RowSchema(federation.shape, federation.classes, federation.schema)
        for name in self.data.joined:
            federation = federation.with_client(name, *self.newcomer(name, like))
        if self.data.without or self.data.joined:
            federation.checked()  # not before others have come
        if self.data.validation_fraction:
            return federation.with_validation(self.data.validation_fraction, self.seed)
        return federation

    def _refuse_division(self) -> None:
        """Of data that turned out to be divided: a plugin's."""
        usual = Config()
        for key in (f"{table}.{each}" for table, keys in meaningless(IN_MEMORY).items() for each in sorted(keys)):
            if self.value(key) != usual.value(key):
                raise _of_undivided(key, f"{self.data.name} comes divided")

    def newcomer(self, name: str, like: RowSchema) -> tuple[Part, Part]:
        """Training and test rows of a client that came later."""
        return read_newcomer(self.data.joined[name], name, like, self.data.reading, self.data.test_fraction, self.seed)

    @property
    def heterogeneity(self) -> Heterogeneity:
        """How a pool of images is divided over clients and shifted."""
        return Heterogeneity(**self.data.model_dump(include={*CONSTRUCTED, "test_fraction"}), **self.shift.model_dump())

    @property
    def rows(self) -> tuple[Data, Shift]:
        """What decides which rows are seen: wherever a published data set lies, it is the same."""
        published = self.data.name in NAMED
        return self.data.model_copy(update={"path": None}) if published else self.data, self.shift

    def value(self, key: str) -> Any:
        """The value of a dotted key."""
        return functools.reduce(getattr, key.split("."), self)

    def to_dict(self) -> dict[str, Any]:
        """Every value that means something, defaults included; resolving it again gives an equal configuration."""
        return self.model_dump(mode="json", exclude_none=True, exclude=meaningless(self.data.name))

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())


def load_config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise FedSPMError(f"there is no configuration file {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FedSPMError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise DamagedFile(f"{path} is not valid TOML: {error}") from error


def resolve(*layers: Mapping[str, Any]) -> Config:
    """One configuration from layers, later ones winning; below them what the preset and the data set they name set."""
    wanted = _known(merged(*layers))
    _refuse_meaningless_keys(wanted)
    config = _made(merged(_defaults(wanted), wanted))
    if config.rounds > config.schedule:
        raise FedSPMError(
            f"rounds = {config.rounds}: nothing is learnt after the horizon of {config.schedule}, where the learning "
            "rate is zero; set a longer horizon or fewer rounds"
        )
    return config


def recorded(settings: Mapping[str, Any]) -> Config:
    """A configuration that was written down. A key that it lacks came later and has the default of its field, which is
    how things were before: not what today's preset sets."""
    return _made(merged(Config().model_dump(), _known(settings)))


def own_settings(config: Config, without: Collection[str]) -> dict[str, Any]:
    """What a model that was fitted on arrays says beyond its preset, by dotted key, without these tables and keys."""
    usual = resolve({"preset": config.preset, "data": {"name": IN_MEMORY}})
    different: dict[str, Any] = {}
    for name, value in config:
        if isinstance(value, Strict):
            pairs = [(f"{name}.{key}", inner, getattr(getattr(usual, name), key)) for key, inner in value]
        elif isinstance(value, dict):
            pairs = [(f"{name}.{key}", inner, None) for key, inner in value.items()]
        else:
            pairs = [(name, value, getattr(usual, name))]
        different |= {key: inner for key, inner, default in pairs if inner != default}
    return {key: value for key, value in different.items() if not {key, key.split(".")[0]} & set(without)}


def _known(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing unknown; own data given by path goes by its name."""
    refuse_unknown_keys(wanted, Config)
    return {**wanted, "data": _own_by_path(wanted.get("data", {}))}


def _made(values: Mapping[str, Any]) -> Config:
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise FedSPMError(problem(error, Config)) from error
    if config.engine != "local" and config.clients_at_once > 1:
        raise FedSPMError(f"engine = {config.engine}: a site trains its own client; clients_at_once is for local")
    return config


def _defaults(wanted: Mapping[str, Any]) -> dict[str, Any]:
    preset = wanted.get("preset", "default")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise FedSPMError(f"there is no preset {preset!r}; known are {', '.join(PRESETS)}")
    name = _data_name(wanted)
    elsewhere = wanted.get("engine") == "flower"  # rows are the sites' own, and the sample is nobody's
    images = name in (SAMPLE, *NAMED) and name != HEART.name and not elsewhere
    known = {"predictor": {"learning_rate": OF_IMAGES}} if images else {}
    of_data = {} if elsewhere and name == SAMPLE else OF_DATA.get(name, {})
    return merged(Config().model_dump(), known, of_data, PRESETS[preset])


def _data_name(wanted: Mapping[str, Any]) -> str:
    return str(wanted["data"].get("name", Data().name))


def _own_by_path(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """`data.name` may be the path of one's own data: it has a separator, or it exists and is no data set's name."""
    name = data.get("name")
    if not isinstance(name, str) or name in (OWN, IN_MEMORY) or is_known(name):
        return data
    if not name.strip():
        raise FedSPMError("data.name is empty; give the name of a data set, or the path of your own data")
    if "/" in name or os.sep in name or Path(os.path.expanduser(name)).exists():
        return {**data, "name": OWN, "path": name}
    return data


def _of_undivided(key: str, why: str) -> FedSPMError:
    return FedSPMError(f"{key} is for images that are still to be divided over clients; {why}, so leave it out")


def _refuse_meaningless_keys(wanted: Mapping[str, Any]) -> None:
    name = _data_name(wanted)
    for table, keys in meaningless(name).items():
        if found := [key for key in wanted.get(table, {}) if key in keys]:
            raise _of_undivided(f"{table}.{found[0]}", DIVIDED[name])
    if name != OWN and (found := [key for key in OF_TABLES if wanted["data"].get(key)]):
        if name != IN_MEMORY and not is_known(name):
            raise unknown_data(name)
        raise FedSPMError(f"data.{found[0]} says how your own table is read; {name} is none, so leave it out")
    if "size" in wanted["data"] and (name in (SAMPLE, IN_MEMORY) or (name in NAMED and not NAMED[name].size)):
        raise FedSPMError(f"data.size: the images of {name} are taken in their own size; leave it out")
