"""What is impossible in a reply, whatever the rows of the client that sent it: looked at alone, without the others'."""

import torch

from fedspm.base.errors import Refused
from fedspm.base.tensors import Tensors
from fedspm.federated.replies import Combined, Mean, PerClient, Reply
from fedspm.federated.steps import Step
from fedspm.federated.uploads import Count, EvaluationCount, Sender, Update


def check_reply(step: Step, client: str, reply: Reply, sender: Sender) -> None:
    """Refuse what is not finite, a weight beyond the client's rows, and what the declared kinds cannot hold."""
    mean = reply.mean if isinstance(reply, Combined) else reply
    rows = reply.rows if isinstance(reply, Combined) else reply
    weight, averaged = mean.as_sent() if isinstance(mean, Mean) else (None, {})
    row = rows.rows.get(client, {}) if isinstance(rows, PerClient) else {}
    for part in (averaged, row):
        require_finite(part)
    if weight is not None:
        require_weight(weight, sender.rows)
    check_kinds(step, averaged, row, weight, sender)


def require_finite(tensors: Tensors) -> None:
    for name, value in tensors.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise Refused(f"{name!r} has a value that is not finite")


def require_weight(weight: object, rows: int) -> float:
    if not isinstance(weight, float) or not 0 < weight <= rows:  # NaN is not
        raise Refused(f"its weight is {weight!r}; it must lie above 0 and be at most its rows")
    return weight


def check_kinds(step: Step, averaged: Tensors, row: Tensors, weight: float | None, sender: Sender) -> None:
    """Refuse what the declared kinds of tensors cannot hold; `averaged` and `row` are the two parts of a reply."""
    if averaged and not any(isinstance(step.upload(name), Update) for name in averaged) and weight != 1:
        raise Refused(f"its weight is {weight!r}; a sum has the weight 1")
    for part in (averaged, row):
        for name in sorted(
            part, key=lambda name: (not isinstance(step.upload(name), Count), name)
        ):  # sums follow counts
            upload = step.upload(name)
            assert upload is not None  # the gate came before
            upload.check(name, part, sender)
    for name, upload in step.uploads.items():
        if isinstance(upload, EvaluationCount) and name not in row:
            upload.check(name, row, sender)
