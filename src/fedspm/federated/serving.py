"""What an algorithm adds so that a router and the clients' nodes can answer in different places."""

from abc import abstractmethod

from jaxtyping import Float
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm


class Servable(Algorithm):
    """The embedding of a row has two halves: the router looks first, and the node of a client goes on from there."""

    @abstractmethod
    def router_part(self, shared: Tensors) -> Tensors:
        """What of the shared state a router needs: no head, and nothing that a client keeps."""

    @abstractmethod
    def node_part(self, client: int, private: Tensors, shared: Tensors) -> Tensors:
        """What the node of one client needs, as if it were the only client: its rows of shared tables are row 0."""

    @abstractmethod
    def routing_view(self, shared: Tensors, x: Float[Tensor, "n *shape"]) -> Tensors:
        """The router's half of `embed`, of standardised rows."""

    @abstractmethod
    def predicting_view(self, shared: Tensors, x: Float[Tensor, "n *shape"]) -> Tensors:
        """The node's half of `embed`, of standardised rows."""

    @abstractmethod
    def log_components(self, shared: Tensors, embedding: Tensors) -> Float[Tensor, "n m c"]:
        """log P_i(c | x) for every client i, from what the router knows"""

    def embed(self, shared: Tensors, x: Float[Tensor, "n *shape"]) -> Tensors:
        x = self.standardise(shared, x)
        return self.predicting_view(shared, x) | self.routing_view(shared, x)
