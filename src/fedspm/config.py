"""The configuration of a run: typed, written as TOML, strict: an unknown key is an error that names the nearest."""

import difflib
import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, Field, ValidationError, field_validator

from fedspm.core.settings import Settings, Strict
from fedspm.data.federation import Federation
from fedspm.data.heterogeneity import Heterogeneity, impose
from fedspm.data.sources import load_data
from fedspm.errors import DamagedFile, FedSPMError

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    # The method as printed, with the normalisation that the paper's numbers point to: docs/decisions/0003.
    "paper": {
        "predictor": {"normalisation": "batch"},
        "em": {"start": "random", "hold": 0, "scaled_steps": False, "server_step": 1.0},
    },
}


class Data(Strict):
    """Which data set, and how it is divided over clients."""

    name: str = Field(
        "fashion-sample",
        description="fashion-sample (10,000 images, ships with the package), fashion-mnist, or one of a plugin",
    )
    path: Path | None = Field(None, description="folder of the data set, if it is not found by itself")
    clients: int = Field(8, ge=2, description="m, number of clients")
    true_components: int = Field(2, ge=1, description="hidden subgroups inside every client")
    alpha_inter: float = Field(1.0, gt=0, description="Dirichlet concentration of the classes over clients")
    alpha_intra: float = Field(2.0, gt=0, description="Dirichlet concentration of the true mixing weights")
    test_fraction: float = Field(0.3, gt=0, lt=1, description="share of every client's rows held out for testing")
    validation_fraction: float = Field(
        0.0, ge=0, lt=1, description="evaluate on this share of the training rows instead of the test rows"
    )

    @field_validator("path")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        """So that a run can be resumed from another folder."""
        return path and path.expanduser().resolve()


class Shift(Strict):
    """What clients and components do to the images."""

    colour: float = Field(0.3, description="red up and blue down, or the reverse; 0 switches it off")
    brightness: float = Field(0.5, description="height of the two brightness ramps; 0 switches them off")
    inversion: bool = Field(True, description="component 1 is the negative of the image")
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
        federation = load_data(self.data.name, self.data.path)
        if not isinstance(federation, Federation):
            how = Heterogeneity(
                **self.data.model_dump(exclude={"name", "path", "validation_fraction"}), **self.shift.model_dump()
            )
            federation = impose(*federation, how, self.seed)
        if self.data.validation_fraction:
            return federation.with_validation(self.data.validation_fraction, self.seed)
        return federation

    def value(self, key: str) -> Any:
        """The value of a dotted key."""
        return functools.reduce(getattr, key.split("."), self)

    def to_toml(self) -> str:
        """Every value, defaults included; loading it again gives an equal configuration."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


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
    """One configuration from layers, later ones winning: the preset they name, a file, the command line."""
    wanted = merged(*layers)
    _refuse_unknown_keys(wanted, Config, "")
    preset = wanted.get("preset", "default")
    try:
        return Config.model_validate(merged(_defaults(preset), wanted))
    except ValidationError as error:
        first = error.errors()[0]
        table, *rest = first["loc"]
        inner = rest[:1] if table in ("predictor", "router", "em", "data", "shift", "sites") else []
        where = ".".join(map(str, [table, *inner]))
        raise FedSPMError(f"{where} = {first['input']!r}: {_plain(first['msg'])}") from error


def differences(one: Config, other: Config) -> list[str]:
    """Settings that change a result and are not the same, as `key: this, now that`."""
    indifferent = {"diagnose_every", "workers", "device", "engine", "keep_checkpoints", "tensorboard"}
    values = [{key: config.value(key) for key in _keys(Config) if key not in indifferent} for config in (one, other)]
    return [f"{key}: {values[0][key]}, now {values[1][key]}" for key in values[0] if values[0][key] != values[1][key]]


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables, later ones winning key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both_tables = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both_tables else value
    return result


def dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"router.steps": 20} as {"router": {"steps": 20}}."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *tables, last = key.split(".")
        inner: dict[str, Any] = {last: value}
        for table in reversed(tables):
            inner = {table: inner}
        nested = merged(nested, inner)
    return nested


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """`--set router.steps=20` as TOML, with bare words taken as strings."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise FedSPMError(f"--set {assignment!r}: write key=value, for instance --set router.steps=20")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text
    return dotted(values)


def _defaults(preset: object) -> dict[str, Any]:
    if not isinstance(preset, str) or preset not in PRESETS:
        raise FedSPMError(f"there is no preset {preset!r}; known are {', '.join(PRESETS)}")
    return merged(Config().model_dump(), PRESETS[preset])


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
    return message[0].lower() + message[1:]
