"""Methods whose clients predict with a whole model of their own, kept in their private state."""

from jaxtyping import Float
from torch import Tensor

from fedspm.algorithms.fedavg import FedAvg
from fedspm.base.tensors import Tensors
from fedspm.mixture.model import log_likelihood

PREFIX = "personal."


class PersonalModel(FedAvg):
    def personal(self, private: Tensors) -> Tensors:
        return {name.removeprefix(PREFIX): value for name, value in private.items() if name.startswith(PREFIX)}

    def kept(self, w: Tensors) -> Tensors:
        return {PREFIX + name: value for name, value in w.items()}

    def embed(self, shared: Tensors, x: Tensor) -> Tensors:
        return {"x": self.standardise(shared, x)}  # no encoder is shared at inference

    def local_probabilities(
        self, client: int, private: Tensors, shared: Tensors, embedding: Tensors
    ) -> Float[Tensor, "n k"]:
        w = self.personal(private) or self.weights(shared)
        return log_likelihood(w["head.weight"], w["head.bias"], self.predictor(w, embedding["x"]))[:, 0].exp()
