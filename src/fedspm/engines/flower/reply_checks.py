"""What is finite and yet impossible in a reply, whatever the rows of the site that sent it.

A site that lies within these bounds still moves the mean by its share ρ_i: nothing here makes averaging robust.
"""

import math
from collections.abc import Mapping
from statistics import median

from fedspm.base.errors import Refused
from fedspm.base.tensors import Tensors
from fedspm.federated.replies import Combined, PerClient, Reply
from fedspm.federated.steps import Step
from fedspm.federated.uploads import Count, EvaluationCount, Sender, Update


def check_reply(step: Step, averaged: Tensors, row: Tensors, weight: float | None, sender: Sender) -> None:
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


def out_of_proportion(
    replies: Mapping[str, Reply], shared: Tensors, counts: Mapping[str, int], most: float
) -> dict[str, str]:
    """Sites whose update is longer than `most` times the median of the others', and the two lengths. Fewer than three
    sites cannot be judged, nor an exchange without updates.

    Updates from few rows are longer (the noise of a gradient goes with 1/√n) and weigh less: a site with fewer rows
    than the median of the others, n, may be longer by √(n/n_i).
    """
    if len(replies) < 3 or math.isinf(most):
        return {}
    lengths = {site: change(reply, shared) for site, reply in replies.items()}
    found = {}
    for site, length in lengths.items():
        others = [other for other in lengths if other != site]
        usual = median(lengths[other] for other in others)
        fewer = max(1.0, math.sqrt(median(counts[other] for other in others) / counts[site]))
        if usual > 0 and length > most * fewer * usual:
            found[site] = (
                f"its update has the length {length:.3g}, {length / usual:.3g} times the median of the others' "
                f"({usual:.3g}); with {counts[site]:,} rows more than {most * fewer:.3g} times is refused "
                f"(sites.max_update = {most:g})"
            )
    return found


def change(reply: Reply, shared: Tensors) -> float:
    """The L2 norm of the change of the shared parameters in a reply, all of them together; of τ there is a row only,
    and it is none of them."""
    if isinstance(reply, Combined):
        return change(reply.mean, shared)
    moved = (
        {name: value for row in reply.rows.values() for name, value in row.items()}
        if isinstance(reply, PerClient)
        else reply.as_sent()[1]
    )
    return math.sqrt(
        sum(
            float((value.double() - shared[name].cpu().double()).square().sum())
            for name, value in moved.items()
            if name in shared and value.is_floating_point() and value.shape == shared[name].shape
        )
    )
