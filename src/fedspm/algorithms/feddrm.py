"""FedDRM: one component a client, shared encoders, a head a client, routing by density ratios (Wang et al. 2026).

FedSPM with C = 1: the mixture is gone, and what is left of Q̃₂ is multinomial logistic regression of the client on h(x).
"""

from collections.abc import Mapping

from torch import nn

from fedspm.algorithms.fedspm import FedSPM
from fedspm.core.algorithm import Task
from fedspm.core.settings import Settings


class FedDRM(FedSPM):
    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings.model_copy(update={"components": 1, "variant": "1x"}), task, networks)
