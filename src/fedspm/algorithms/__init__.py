"""The methods, one file each, by name; those of other packages are found through entry points."""

from collections.abc import Mapping

from torch import nn

from fedspm.algorithms.cluster_fl import ClusterFL
from fedspm.algorithms.ditto import Ditto
from fedspm.algorithms.fedadam import FedAdam
from fedspm.algorithms.fedavg import FedAvg
from fedspm.algorithms.fedavg_ft import FedAvgFT
from fedspm.algorithms.fedbabu import FedBABU
from fedspm.algorithms.feddrm import FedDRM
from fedspm.algorithms.fedem import FedEM
from fedspm.algorithms.fedgmm import FedGMM
from fedspm.algorithms.fedper import FedPer
from fedspm.algorithms.fedprox import FedProx
from fedspm.algorithms.fedspm import FedSPM
from fedspm.algorithms.local import Local
from fedspm.algorithms.scaffold import Scaffold
from fedspm.base.errors import FedSPMError
from fedspm.base.plugins import ENCODERS, NamedCode, plugin, plugin_names
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.gate import require_covered
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task

ALGORITHMS: dict[str, type[Algorithm]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedavg-ft": FedAvgFT,
    "ditto": Ditto,
    "fedadam": FedAdam,
    "fedper": FedPer,
    "scaffold": Scaffold,
    "cluster-fl": ClusterFL,
    "fedbabu": FedBABU,
    "fedem": FedEM,
    "fedgmm": FedGMM,
    "feddrm": FedDRM,
    "fedspm": FedSPM,
}

BASELINES = ("fedavg", "fedprox", "fedavg-ft", "ditto", "cluster-fl", "fedbabu", "fedem", "fedgmm", "feddrm")
"""The methods that the paper's table 1 compares FedSPM with."""


def algorithm_named(name: str) -> type[Algorithm]:
    found = ALGORITHMS.get(name) or plugin("algorithms", name)
    if found is None:
        known = ", ".join([*ALGORITHMS, *plugin_names("algorithms")])
        raise FedSPMError(f"there is no algorithm {name!r}; known are {known}")
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise FedSPMError(
            f"the plugin {name!r} is {found!r}, not a class that extends fedspm.federated.algorithm.Algorithm"
        )
    return found


def outside_code(settings: Settings) -> list[NamedCode]:
    """What a model with these settings is built from and is not part of this package."""
    encoders = [NamedCode("encoders", name) for name in dict.fromkeys(settings.encoders) if name not in ENCODERS]
    return encoders + [NamedCode("algorithms", name) for name in [settings.algorithm] if name not in ALGORITHMS]


def build_algorithm(settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None) -> Algorithm:
    """The algorithm that the settings name, for a task. `networks` replace the encoders of their roles, "predictor" and
    "router". With noise, one that sends anything without it is refused."""
    algorithm = algorithm_named(settings.algorithm)(settings, task, networks)
    for step in algorithm.steps_in_use().values() if settings.privacy.noise else ():
        require_covered(algorithm, step)
    return algorithm
