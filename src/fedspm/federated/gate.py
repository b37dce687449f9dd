"""What may leave a client: the steps and tensors that an algorithm declares in `leaves`, and nothing else.

Every engine asks here before a reply leaves, and the server of a run across sites again when it arrives:
docs/decisions/0001.
"""

from collections.abc import Collection

from fedspm.base.errors import Refused
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.replies import Combined, PerClient, Reply


def require_step(algorithm: Algorithm, step: str) -> None:
    """Refuse a step that is not declared; `personalise` needs no declaration, nothing of it leaves."""
    if step not in algorithm.leaves and step != "personalise":
        raise Refused(f"{algorithm.settings.algorithm} has no client step {step!r}")


def require_declared(algorithm: Algorithm, step: str, names: Collection[str]) -> None:
    """Refuse tensors that the step does not declare, by whole name or by the first part of a dotted one."""
    for name in names:
        if not {name, name.split(".")[0]} & algorithm.leaves.get(step, frozenset()):
            raise Refused(
                f"{name!r} is not declared to leave a client in step {step} ({type(algorithm).__name__}.leaves)"
            )


def require_declared_reply(algorithm: Algorithm, step: str, client: str, reply: Reply) -> None:
    """Refuse a reply with tensors that the step does not declare, or with rows that are another client's."""
    if isinstance(reply, Combined):
        require_declared_reply(algorithm, step, client, reply.mean)
        require_declared_reply(algorithm, step, client, reply.rows)
    elif isinstance(reply, PerClient):
        if foreign := sorted(reply.rows.keys() - {client}):
            raise Refused(f"the reply to step {step} has a row for {foreign[0]!r}; a client answers for itself only")
        require_declared(algorithm, step, reply.rows.get(client, {}))
    else:
        require_declared(algorithm, step, reply.totals())


def most_noised(algorithm: Algorithm, step: str, shared: Tensors) -> int:
    """How many noised vectors a reply to this step can hold at most: an update of what is shared, and τ.

    For a server that sees replies only if they arrive, and must count the others too.
    """
    settings, declared = algorithm.settings, algorithm.leaves.get(step, frozenset())
    if not settings.privacy.noise:
        return 0
    update = any({name, name.split(".")[0]} & declared for name in shared if name != "tau")
    return int(update) + int("tau" in declared and settings.components > 1)
