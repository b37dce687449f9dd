"""What the router says of each row. `Answer` both builds the reply and describes it on the OpenAPI page.

It is a TypedDict and not a pydantic model: building one costs no more than a dict, and mypy checks its fields once
instead of pydantic at every request.
"""

from collections.abc import Iterator, Sequence
from typing import (
    Annotated,
    NotRequired,  # pydantic wants these on Python 3.11
)

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from fedspm.data.heterogeneity import own_name
from fedspm.serve.bundle import Card
from fedspm.serve.dispatch import Prediction
from fedspm.serve.routing_result import RoutingResult

SHOWN, LIKELIEST = 64, 16  # clients up to which all are in a reply, and how many of more
ROUNDING = 1e-6  # of a share in single precision
WARNING = "this query resembles the data of no client; do not rely on the answer"
Label = str | int | float | bool


class Answer(TypedDict):
    """What is said of one row."""

    client: Annotated[str, Field(description="whom the row resembles most")]
    posterior: Annotated[
        dict[str, float], Field(description=f"P(client | x); of more than {SHOWN} clients the {LIKELIEST} likeliest")
    ]
    others: NotRequired[
        Annotated[float | None, Field(description="what the clients that are not in the posterior have together")]
    ]
    components: Annotated[list[float], Field(description="P(component | x) inside the client that answered")]
    novel: Annotated[
        bool | None, Field(description="true: the row resembles nobody; null: the bundle is not calibrated")
    ]
    novelty: Annotated[float | None, Field(description="share of known rows that look less novel")]
    warning: NotRequired[Annotated[str | None, Field(description="there if the row is novel")]]
    answered_by: NotRequired[
        Annotated[str | None, Field(description="who answered; in a blend, who had the largest share")]
    ]
    weights: NotRequired[
        Annotated[dict[str, float] | None, Field(description="everybody who answered, with their share")]
    ]
    fallback: NotRequired[Annotated[bool | None, Field(description="true if the client that was meant did not answer")]]
    prediction: NotRequired[Annotated[Label | None, Field(description="the likeliest class")]]
    probabilities: NotRequired[Annotated[dict[str, float] | None, Field(description="P(class | x)")]]
    means: NotRequired[
        Annotated[
            Label | None,
            Field(
                description="where label names are permuted by construction: the class that the prediction stands for"
            ),
        ]
    ]
    in_words: NotRequired[
        Annotated[str | None, Field(description="there if they are: whose name the prediction is, and for what")]
    ]
    view: NotRequired[
        Annotated[str | None, Field(description="with view=true: the image as the model sees it, a data URL")]
    ]
    seconds: NotRequired[Annotated[float | None, Field(description="time inside the router, if one row was asked for")]]


class Answers(TypedDict):
    """What is said of a batch."""

    answers: list[Answer]
    seconds: float


def build_answers(card: Card, result: RoutingResult, prediction: Prediction | None) -> list[Answer]:
    """One answer per row: who was meant and who answered, what, and how sure the system is of both. Without a
    prediction it says only whom the row resembles."""
    meant = result.posterior.argmax(1).tolist()
    who = meant if prediction is None else [max(weights, key=weights.__getitem__) for weights in prediction.weights]
    components = result.components[torch.arange(len(who)), who].tolist()
    novelty = [None] * len(who) if result.novelty is None else result.novelty.tolist()
    found: list[Answer] = []
    for row, (posterior, others) in enumerate(_posteriors(card.names, result.posterior)):
        answer = Answer(
            client=card.names[meant[row]],
            posterior=posterior,
            components=components[row],
            novel=_is_novel(novelty[row], card.false_alarms),
            novelty=novelty[row],
        )
        if others is not None:
            answer["others"] = others
        if answer["novel"]:
            answer["warning"] = WARNING
        found.append(answer)
    if prediction is not None:
        _add_predictions(found, card, prediction, meant, who)
    return found


def _posteriors(
    names: Sequence[str], posterior: Float[Tensor, "n m"]
) -> Iterator[tuple[dict[str, float], float | None]]:
    """P(client | x) of every row by name, and what those that are left out have together, if any are."""
    if len(names) <= SHOWN:
        for row in posterior.tolist():
            yield dict(zip(names, row, strict=True)), None
        return
    likeliest = posterior.topk(LIKELIEST, dim=1)
    for shares, clients in zip(likeliest.values.tolist(), likeliest.indices.tolist(), strict=True):
        yield {names[i]: share for i, share in zip(clients, shares, strict=True)}, max(0.0, 1 - sum(shares))


def _is_novel(novelty: float | None, false_alarms: float | None) -> bool | None:
    """None if that was not calibrated."""
    return None if novelty is None or false_alarms is None else novelty >= 1 - false_alarms - ROUNDING


def _add_predictions(
    answers: list[Answer], card: Card, prediction: Prediction, meant: list[int], who: list[int]
) -> None:
    labels = [str(label) for label in card.classes]
    best = prediction.probabilities.argmax(1).tolist()
    for row, probabilities in enumerate(prediction.probabilities.tolist()):
        answer, weights = answers[row], prediction.weights[row]
        answer["answered_by"] = card.names[who[row]]
        answer["weights"] = {card.names[i]: weight for i, weight in weights.items()}
        answer["fallback"] = meant[row] not in weights
        answer["prediction"] = card.classes[best[row]]
        answer["probabilities"] = dict(zip(labels, probabilities, strict=True))
        if card.meanings is not None and card.names[who[row]] in card.meanings:
            _add_meaning(answer, card, card.names[who[row]], best[row], blended=len(weights) > 1)


def _add_meaning(answer: Answer, card: Card, client: str, label: int, blended: bool) -> None:
    """Where every client has label names of its own: what the prediction stands for in the likeliest component."""
    assert card.meanings is not None
    prediction, components = card.classes[label], answer["components"]
    if blended:
        answer["means"] = None
        answer["in_words"] = f"{prediction}, a blend of clients with label names of their own"
        return
    known = card.meanings[client][components.index(max(components))]
    means = None if known is None else card.classes[known[label]]
    answer["means"], answer["in_words"] = means, own_name(client, prediction, means)
