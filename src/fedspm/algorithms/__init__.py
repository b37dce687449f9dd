"""The methods, one file each, by name."""

from fedspm.algorithms.cluster_fl import ClusterFL
from fedspm.algorithms.ditto import Ditto
from fedspm.algorithms.fedavg import FedAvg
from fedspm.algorithms.fedavg_ft import FedAvgFT
from fedspm.algorithms.fedbabu import FedBABU
from fedspm.algorithms.feddrm import FedDRM
from fedspm.algorithms.fedem import FedEM
from fedspm.algorithms.fedgmm import FedGMM
from fedspm.algorithms.fedprox import FedProx
from fedspm.algorithms.fedspm import FedSPM
from fedspm.core.algorithm import Algorithm
from fedspm.errors import FedSPMError

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedavg-ft": FedAvgFT,
    "ditto": Ditto,
    "cluster-fl": ClusterFL,
    "fedbabu": FedBABU,
    "fedem": FedEM,
    "fedgmm": FedGMM,
    "feddrm": FedDRM,
    "fedspm": FedSPM,
}


def algorithm_named(name: str) -> type[Algorithm]:
    if name not in ALGORITHMS:
        raise FedSPMError(f"there is no algorithm {name!r}; known are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]
