"""How large a method is: for manifests, tables and reports."""

from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm


def encoder_sizes(algorithm: Algorithm) -> dict[str, dict[str, int]]:
    """Copies (1×, C×), parameters and multiply-adds per row of every encoder."""
    return {
        encoder.role: {
            "copies": encoder.copies,
            "parameters": encoder.size(),
            "multiply_adds": encoder.multiply_adds(),
        }
        for encoder in algorithm.encoders
    }


def learnt_parameters(algorithm: Algorithm, shared: Tensors, private: Tensors) -> dict[str, int]:
    """How many numbers are learnt: by all together, and by one client for itself."""
    fixed = {name for encoder in algorithm.encoders for name in encoder.fixed}
    apart = algorithm.bookkeeping | algorithm.server_only | fixed

    def count(state: Tensors) -> int:
        return sum(value.numel() for name, value in state.items() if not apart & {name, *name.split(".", 1)})

    return {"shared": count(shared), "private": count(private)}
