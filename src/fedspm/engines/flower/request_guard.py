"""Which requests a site answers: steps that its run uses, at the turn they belong to, as often as training needs them.

A server may do a round again, after a crash or because too few sites answered. A request that was answered before is
answered again: the reply is the same. One with another content, or from another private state, counts. A round may
have other contents when it is repeated (another site's τ was missing before), so some more are allowed over a run; the
start has none, since it needs everybody.
"""

from collections import Counter
from collections.abc import Collection

from safetensors.torch import save

from fedspm.base.errors import Refused
from fedspm.base.files import sha256
from fedspm.base.tensors import Tensors, plain
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.steps import ATTEMPTS, Step

Request = tuple[int, str, str]  # turn, step, fingerprint of everything that the reply follows from
PLACES = {
    "start": "the start",
    "round": "the rounds",
    "evaluation": "evaluations",
    "after training": "the end of the last round",
}


def require_due(algorithm: Algorithm, step: Step, turn: int, round: int, client: int) -> None:
    """Refuse a step that the run does not use, or that does not belong to this turn."""
    rounds = algorithm.settings.rounds
    if round != max(0, turn - 1) or not 0 <= turn <= rounds:
        raise Refused(f"the request is for round {round} in turn {turn} of a run of {rounds} rounds")
    if step.name not in algorithm.steps_in_use():
        raise Refused(f"the settings of this run do not use the step {step.name!r}")
    first, last = {"start": (0, 0), "after training": (rounds, rounds)}.get(step.when, (1, rounds))
    if not first <= turn <= last:
        place = f"belongs to {PLACES[step.when]} of this run and is not answered in {_named(turn)}"
        raise Refused(f"the step {step.name!r} {place}")
    if step.when == "round" and client not in algorithm.participants(round):
        raise Refused(f"this site was not drawn for round {round}, and does not answer the step {step.name!r} in it")


def fingerprint(*parts: Tensors, rows: str = "") -> str:
    """Of what a reply follows from: shared state, arguments and private state, and the rows, by their digest. A site
    whose rows have changed would answer the same request with something else."""
    return sha256("".join([*(sha256(save(plain(part))) for part in parts), rows]).encode())[:32]


def require_allowed(algorithm: Algorithm, step: Step, known: Collection[Request], request: Request) -> bool:
    """True if the request is new and within what training needs, False if it was answered before."""
    if request in known:
        return False
    turn = request[0]
    if step.when == "start" and any(other > 0 for other, _, _ in known):
        raise Refused(f"this run has begun its rounds; the step {step.name!r} of its start is not answered any more")
    answered = Counter(other for other, name, _ in known if name == step.name)
    times = step.most_times(algorithm)
    spare = 0 if step.when == "start" else max(ATTEMPTS, algorithm.settings.rounds)
    spent = sum(max(0, often - times) for often in answered.values())
    if answered[turn] >= times and spent >= spare:
        raise Refused(
            f"this site has answered the step {step.name!r} {answered[turn]} times in {_named(turn)}, as often as "
            "training needs it, and does not answer it with another content; begin another run"
        )
    return True


def _named(turn: int) -> str:
    return f"round {turn - 1}" if turn else "the start"
