"""Whatever somebody hands over, as double precision."""

from typing import Any

import numpy as np

from fedspm.base.errors import FedSPMError


def as_numbers(what: str, given: Any) -> np.ndarray:
    """A new array, or a sentence about `what` is not one."""
    try:
        if np.iscomplexobj(given):
            raise ValueError("it is complex")
        return np.array(given, dtype=np.float64)
    except (ValueError, TypeError, RuntimeError) as error:  # the last: a tensor that records gradients
        raise FedSPMError(f"{what} does not hold numbers in rows of one length: {error}") from error
