"""How many multiply-adds a piece of tensor work is.

`FlopCounterMode` of torch.utils.flop_counter counts the same, and imports the whole of torch's compiler for it: more
than a second in every process that trains.
"""

from collections.abc import Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class MultiplyAdds(TorchDispatchMode):
    """Counts what is done inside, by the formulas of torch: `with torch.no_grad(), MultiplyAdds() as counted: ...`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in here, so there is no compiler to keep out."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        answer = func(*args, **kwargs)
        if (flops := flop_registry.get(func._overloadpacket)) is not None:
            self.total += int(flops(*args, **kwargs, out_val=answer)) // 2
        return answer
