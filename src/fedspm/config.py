"""The configuration of a run: typed, written as TOML, strict: an unknown key is an error that names the nearest."""

import difflib
import functools
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, Field, ValidationError, field_validator

from fedspm.core.settings import Settings, Strict
from fedspm.data.draft import SIDES, Draft, Reading
from fedspm.data.federation import Federation, Part
from fedspm.data.heterogeneity import Heterogeneity, impose
from fedspm.data.newcomer import Likeness, read_newcomer
from fedspm.data.own import read_own
from fedspm.data.sources import NAMED, Images, is_known, load_data
from fedspm.errors import DamagedFile, FedSPMError
from fedspm.nested import merged

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    # The method as printed, with a ResNet as He et al. have it: docs/decisions/0003.
    "paper": {
        "predictor": {"normalisation": "batch", "grid": 1},
        "em": {"start": "random", "hold": 0, "scaled_steps": False, "server_step": 1.0},
    },
}

# What the paper sets for a data set, below the preset and below whatever a person says; `em` is ours: decision 0003.
_CIFAR = {
    "rounds": 400,
    "em": {"hold": 40},
    "predictor": {"dimension": 64},
    "router": {"dimension": 64},
    "shift": {"inverted_channels": "green"},
}
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
}
DIVIDED = {"fed-isic2019": "a client is a center"}  # data that comes divided over clients, and how
OWN = "own"  # data.name of somebody's own data, which lies at data.path
IN_MEMORY = "arrays"  # data.name of a model that was fitted on arrays
CONSTRUCTED = ("clients", "true_components", "alpha_inter", "alpha_intra")  # what divides a pool of images


class Data(Strict):
    """Which data set, and how it is divided over clients."""

    name: str = Field(
        "fashion-sample",
        description="fashion-sample (10,000 images, ships with the package), fashion-mnist, cifar10, cifar100, "
        "fed-isic2019, one of a plugin, or the path of your own data",
    )
    path: Path | None = Field(None, description="folder or archive of the data set, if it is not found by itself")
    clients: int = Field(8, ge=2, description="m, number of clients")
    true_components: int = Field(2, ge=1, description="hidden subgroups inside every client")
    alpha_inter: float = Field(1.0, gt=0, description="Dirichlet concentration of the classes over clients")
    alpha_intra: float = Field(2.0, gt=0, description="Dirichlet concentration of the true mixing weights")
    test_fraction: float = Field(0.3, gt=0, lt=1, description="share of every client's rows held out for testing")
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="evaluate on this share of the training rows instead of the test rows"
    )
    size: Annotated[int, Field(ge=SIDES[0], le=SIDES[1])] | None = Field(
        None, description="side of an image in pixels; if not given, its own if all are alike and at most 64, else 64"
    )
    client_column: str | None = Field(None, description="your own table: who a row belongs to")
    label_column: str | None = Field(None, description="your own table: the class of a row")
    image_column: str | None = Field(None, description="your own table: path of an image, relative to the table")
    split_column: str | None = Field(None, description="your own table: train or test")
    ignore: tuple[str, ...] = Field((), description="your own table: columns that are left out")
    without: tuple[str, ...] = Field((), description="clients that are left out; `fedspm remove` adds to it")
    joined: dict[str, Path] = Field({}, description="clients that came later and their data; see `fedspm onboard`")

    @field_validator("ignore", "without", mode="before")
    @classmethod
    def _with_commas(cls, names: Any) -> Any:
        return [name.strip() for name in names.split(",")] if isinstance(names, str) else names

    @property
    def title(self) -> str:
        """What people call it."""
        if self.name != OWN or self.path is None:
            return self.name
        return self.path.stem if self.path.is_file() else self.path.name

    def own(self) -> Draft:
        """Somebody's own data as it was found, with everything that is wrong with it."""
        if self.path is None:
            raise FedSPMError("data.name = 'own' needs a data.path: the folder or file of the data")
        return read_own(self.path, self.reading)

    @property
    def reading(self) -> Reading:
        return Reading(
            self.client_column, self.label_column, self.image_column, self.split_column, self.ignore, self.size
        )

    @field_validator("path", "joined")
    @classmethod
    def _absolute(cls, path: Path | dict[str, Path] | None) -> Path | dict[str, Path] | None:
        """So that a run can be resumed from another folder."""
        if isinstance(path, dict):
            return {name: each.expanduser().resolve() for name, each in path.items()}
        return path and path.expanduser().resolve()


class Shift(Strict):
    """What clients and components do to the images."""

    colour: float = Field(0.3, description="red up and blue down, or the reverse; 0 switches it off")
    brightness: float = Field(0.5, description="height of the two brightness ramps; 0 switches them off")
    inversion: bool = Field(True, description="component 1 is the negative of the image")
    inverted_channels: Literal["all", "green"] = Field("all", description="which channels the negative inverts")
    permutation: bool = Field(True, description="label names are permuted for every client and component")


class Sites(Strict):
    """How a server deals with sites that are slow, gone or wrong: docs/deploy.md."""

    wait: float = Field(600.0, gt=0, description="seconds to wait for the sites' answers to one exchange")
    min_clients: int = Field(1, ge=1, description="sites that must answer, or the round is repeated")
    names: tuple[str, ...] = Field((), description="the sites of a run across machines, as their site.toml call them")


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

    def federation(self) -> Federation:
        """The data of this run; images are divided over clients, what comes divided is taken as it is."""
        if self.data.name == OWN:
            loaded: Federation | Images = self.data.own().federation(self.data.test_fraction, self.seed)
        else:
            loaded = load_data(self.data.name, self.data.path, self.data.size)
        federation = loaded if isinstance(loaded, Federation) else impose(*loaded, self.heterogeneity, self.seed)
        if self.data.without:
            federation = federation.without(self.data.without)
        like = Likeness(federation.shape, federation.classes, federation.columns)
        for name in self.data.joined:
            federation = federation.with_client(name, *self.newcomer(name, like))
        if self.data.without:
            federation.checked()  # not before others have come
        if self.data.validation_fraction:
            return federation.with_validation(self.data.validation_fraction, self.seed)
        return federation

    def newcomer(self, name: str, like: Likeness) -> tuple[Part, Part]:
        """Training and test rows of a client that came later."""
        return read_newcomer(self.data.joined[name], name, like, self.data.reading, self.data.test_fraction, self.seed)

    @property
    def heterogeneity(self) -> Heterogeneity:
        """How a pool of images is divided over clients and shifted."""
        return Heterogeneity(**self.data.model_dump(include={*CONSTRUCTED, "test_fraction"}), **self.shift.model_dump())

    def value(self, key: str) -> Any:
        """The value of a dotted key."""
        return functools.reduce(getattr, key.split("."), self)

    def said(self) -> dict[str, Any]:
        """Every value that means something, defaults included; resolving it again gives an equal configuration."""
        return self.model_dump(mode="json", exclude_none=True, exclude=_meaningless(self.data.name))

    def to_toml(self) -> str:
        return tomli_w.dumps(self.said())


def _meaningless(data: str) -> Any:
    """Settings that divide images over clients and shift them: data that comes divided has no use for them."""
    if data != OWN and data not in DIVIDED:
        return {}
    division = set(CONSTRUCTED) | (set() if data == OWN else {"test_fraction"})
    return {"data": division, "shift": set(Shift.model_fields)}


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
    wanted = _checked(merged(*layers))
    return _made(merged(_defaults(wanted), wanted))


def recorded(said: Mapping[str, Any]) -> Config:
    """A configuration that was written down. A key that it lacks came later and has the default of its field, which is
    how things were before: not what today's preset sets."""
    return _made(merged(Config().model_dump(), _checked(said)))


def _checked(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Nothing unknown and nothing that means nothing here; own data given by path goes by its name."""
    _refuse_unknown_keys(wanted, Config, "")
    wanted = {**wanted, "data": _own_by_path(wanted.get("data", {}))}
    _refuse_meaningless_keys(wanted)
    return wanted


def _made(values: Mapping[str, Any]) -> Config:
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        table, *rest = first["loc"]
        inner = rest[:1] if table in ("predictor", "router", "em", "privacy", "wire", "data", "shift", "sites") else []
        where = ".".join(map(str, [table, *inner]))
        given = "" if isinstance(first["input"], Mapping) else f" = {first['input']!r}"  # a table is only named
        raise FedSPMError(f"{where}{given}: {_plain(first['msg'])}") from error
    if config.engine != "local" and config.clients_at_once > 1:
        raise FedSPMError(f"engine = {config.engine}: a site trains its own client; clients_at_once is for local")
    return config


def changed(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """Settings that change a result and are not the same, by key."""
    indifferent = {"diagnose_every", "workers", "device", "engine", "keep_checkpoints", "tensorboard"}
    if one.schedule == other.schedule:  # whether it was said, or is that of the rounds
        indifferent.add("horizon")
    both = {key: (one.value(key), other.value(key)) for key in _keys(Config) if key not in indifferent}
    return {key: (this, that) for key, (this, that) in both.items() if this != that}


def differences(one: Config, other: Config) -> list[str]:
    """The same as sentences: `key: this, now that`."""
    return [f"{key}: {this}, now {that}" for key, (this, that) in changed(one, other).items()]


def prolongs(now: Config, before: Config) -> bool:
    """Is it the same training with more rounds of the same schedule? Then it goes on where that one ended."""
    return before.rounds < now.rounds <= before.schedule == now.schedule and changed(before, now).keys() == {"rounds"}


def _defaults(wanted: Mapping[str, Any]) -> dict[str, Any]:
    preset = wanted.get("preset", "default")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise FedSPMError(f"there is no preset {preset!r}; known are {', '.join(PRESETS)}")
    return merged(Config().model_dump(), OF_DATA.get(_data_name(wanted), {}), PRESETS[preset])


def _data_name(wanted: Mapping[str, Any]) -> str:
    return str(wanted["data"].get("name", Data().name))


def _own_by_path(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """`data.name` may be the path of one's own data: it has a separator, or it exists and is no data set's name."""
    name = data.get("name")
    if not isinstance(name, str) or name in (OWN, IN_MEMORY) or is_known(name):
        return data
    if "/" in name or os.sep in name or Path(name).expanduser().exists():
        return {**data, "name": OWN, "path": name}
    return data


def _refuse_meaningless_keys(wanted: Mapping[str, Any]) -> None:
    name = _data_name(wanted)
    for table, keys in _meaningless(name).items():
        for key in wanted.get(table, {}):
            if key in keys:
                which = (
                    f"{name} comes divided ({DIVIDED[name]})" if name in DIVIDED else "your own data is divided already"
                )
                raise FedSPMError(
                    f"{table}.{key} is for images that are still to be divided over clients; {which}, so leave it out"
                )
    if "size" in wanted["data"] and name in NAMED and not NAMED[name].size:
        raise FedSPMError(f"data.size: the images of {name} all have one size; leave it out")


def _refuse_unknown_keys(values: Mapping[str, Any], model: type[BaseModel], prefix: str) -> None:
    for key, value in values.items():
        if key not in model.model_fields:
            everywhere = _keys(Config)
            near = difflib.get_close_matches(prefix + key, everywhere, n=1, cutoff=0.5) or difflib.get_close_matches(
                key, [name.split(".")[-1] for name in everywhere], n=1, cutoff=0.5
            )
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(model.model_fields)}"
            raise FedSPMError(f"unknown configuration key {prefix + key!r}{hint}")
        inner = model.model_fields[key].annotation
        if isinstance(value, bool) and inner is not bool:
            raise FedSPMError(f"{prefix + key} = {str(value).lower()}: a truth value makes no sense here")
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if not isinstance(value, Mapping):
                raise FedSPMError(
                    f"{prefix + key} is a table with the keys {', '.join(inner.model_fields)}, not {value!r}"
                )
            _refuse_unknown_keys(value, inner, f"{prefix}{key}.")


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += _keys(inner, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


def _plain(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[0].lower() + message[1:]
