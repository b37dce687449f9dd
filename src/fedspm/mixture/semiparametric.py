"""Methods with density ratios and heads, which empirical likelihood can be taken of."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm
from fedspm.nn.encoder import Encoder


@runtime_checkable
class Semiparametric(Protocol):
    """A method with heads and tilts: FedSPM, FedDRM."""

    router: Encoder

    def label_likelihood(self, private: Tensors, shared: Tensors, x: Tensor, y: Tensor) -> Float[Tensor, "n c"]: ...

    def standardise(self, shared: Tensors, x: Tensor) -> Tensor: ...


def require_semiparametric(algorithm: Algorithm) -> None:
    if not isinstance(algorithm, Semiparametric):
        raise FedSPMError("only fedspm and feddrm have density ratios and heads to diagnose (diagnose_every)")
