"""The rules that `robust` names: how the updates of clients become one.

`none` is the plain mean, `norm` the mean of bounded updates (`robust.norm`). The others bound updates in the same way
and then take something else than the mean:

    rule(values, weights) → one number per coordinate

`values` has one row per client and one column per coordinate, `weights` the same shape: 0 where a client has no say.
Another package can add a rule (entry point `fedspm.robust`): docs/extending.md.
"""

from collections.abc import Callable
from functools import cache

from jaxtyping import Float
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.plugins import plugin, plugin_names
from fedspm.federated.robust.krum import multi_krum
from fedspm.federated.robust.median import weighted_median
from fedspm.federated.robust.trimmed import trimmed_mean

Rule = Callable[[Float[Tensor, "k p"], Float[Tensor, "k p"]], Float[Tensor, " p"]]

MEANS = ("none", "norm")
RULES: dict[str, Rule] = {"median": weighted_median, "trimmed": trimmed_mean, "krum": multi_krum}


@cache
def rule_of(name: str) -> Rule | None:
    """The rule of a setting; None if it is the mean."""
    if name in MEANS:
        return None
    found: Rule | None = RULES.get(name) or plugin("robust", name)
    if found is None:
        known = ", ".join([*MEANS, *RULES, *plugin_names("robust")])
        raise FedSPMError(f"robust: there is no rule {name!r}; known are: {known}")
    return found
