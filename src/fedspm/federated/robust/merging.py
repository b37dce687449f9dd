"""The replies to one exchange become one, by the rule that `robust` names: the same way on every engine.

    none      the mean, added up as replies arrive
    norm      updates far beyond the others' are refused, long ones are shortened, then the mean
    others    the same, and the rule in place of the mean

Of a tensor with one row per client (`Update(own_rows=True)`) row r of the new state is

    φ_r + (w_r Δ_r,r + Σ_{j≠r} w_j · rule_{j≠r} Δ_j,r) / Σ_j w_j,

its own client's move within its bound, and what the others make of it by the rule.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.replies import Combined, PerClient, Reply, merge
from fedspm.federated.robust.blocks import Change, has_own_rows, lengths, lengths_of_sums, replaced, rescaled
from fedspm.federated.robust.norm import shortening
from fedspm.federated.robust.reply_checks import check_reply
from fedspm.federated.robust.rules import Rule, rule_of
from fedspm.federated.robust.screening import Lengths, moved_backwards, out_of_proportion
from fedspm.federated.steps import Step
from fedspm.federated.uploads import Sender, Update, values_per_row


class Merging:
    """The replies to one exchange: they are added in client order, and `result` is what an algorithm gets."""

    def __init__(self, algorithm: Algorithm, step: Step, shared: Tensors):
        self._algorithm, self._step, self._shared = algorithm, step, shared
        self._robust = algorithm.settings.robust != "none" and step.when == "round"
        updates = any(isinstance(upload, Update) for upload in step.uploads.values())
        self._held: dict[str, Reply] | None = {} if self._robust and updates else None
        self._merged: Reply | None = None
        self._lengths = Lengths()
        settings = algorithm.settings  # noise moves values anywhere, and so may a plugin's transform
        self._exact = not settings.privacy.noise and not settings.wire.transforms
        self._backwards: dict[str, str] = {}

    @property
    def suspicion(self) -> dict[str, float]:
        """By client, how many times as long as the others' its reply is at most: for whoever looks for a culprit."""
        return {client: self._lengths.times(client) for client in self._lengths.of}

    def check(self, client: str, reply: Reply) -> None:
        """Refuse what no rows of the client give, in process; replies from elsewhere are checked as they are read."""
        task = self._algorithm.task
        if self._algorithm.settings.robust != "none":
            rows = task.counts[task.names.index(client)]
            check_reply(
                self._step,
                client,
                reply,
                Sender(rows, values_per_row(task.shape), task.clients, task.schema is not None),
            )

    def add(self, client: str, reply: Reply) -> None:
        if self._robust:
            change = self._change(client, reply)
            found = lengths(self._step, change) if self._held is not None else lengths_of_sums(reply, change.rows)
            self._lengths.add(client, change.rows, found)
            if self._exact and (why := moved_backwards(self._step, change)):
                self._backwards[client] = why
        if self._held is None:
            self._merged = merge(self._merged, client, reply)
        else:
            self._held[client] = reply

    def refuse(self) -> dict[str, str]:
        """Leave out whose update is far beyond the others', or goes where no local steps go, and say why."""
        if self._held is None:
            return {}
        refused = out_of_proportion(self._lengths, self._algorithm.settings.max_update) | self._backwards
        for client in refused:
            del self._held[client]
            self._lengths.drop(client)
        return refused

    def result(self) -> Reply | None:
        """The replies that are left as one; None if there are none."""
        if self._held is None:
            return self._merged
        for client in self._held:
            if factors := shortening(self._lengths, client):
                shorter = rescaled(self._step, self._change(client, self._held[client]), factors)
                self._held[client] = replaced(self._held[client], self._parameters(shorter))
        rule, merged = rule_of(self._algorithm.settings.robust), None
        changes = [self._change(*held) for held in self._held.items()] if rule else []
        for client, reply in self._held.items():
            merged = merge(merged, client, reply)
        if rule is None or merged is None or isinstance(merged, PerClient):
            return merged
        mean = merged.mean if isinstance(merged, Combined) else merged
        mean.replace(self._parameters(robust_change(rule, self._step, changes)))
        return merged

    def _change(self, client: str, reply: Reply) -> Change:
        task = self._algorithm.task
        index = task.names.index(client)
        return Change.in_reply(client, index, task.counts[index], self._step, self._shared, reply)

    def _parameters(self, change: Tensors) -> Tensors:
        """φ + Δ, in the precision of φ."""
        found = {}
        for name, value in change.items():
            before = self._shared[name].cpu()
            found[name] = (before.double() + value).to(before.dtype)
        return found


def note_suspicion(known: dict[str, float], merging: Merging) -> None:
    """The worst of every client over the exchanges of a round."""
    for client, times in merging.suspicion.items():
        known[client] = max(times, known.get(client, 0.0))


def robust_change(rule: Rule, step: Step, changes: Sequence[Change]) -> Tensors:
    """What the rule makes of the changes: encoders as blocks, and of every tensor with own rows those of the others."""
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
    for name in sorted({name for change in changes for name in change.of}):
        senders = tuple(k for k, change in enumerate(changes) if name in change.of)
        alone = name if has_own_rows(step, name) else name.split(".", maxsplit=1)[0]
        groups[alone, senders].append(name)
    found: Tensors = {}
    for (_, senders), names in groups.items():
        some = [changes[k] for k in senders]
        if has_own_rows(step, names[0]):
            found[names[0]] = _of_rows(rule, names[0], some)
        else:
            found |= _of_block(rule, names, some)
    return found


def _of_block(rule: Rule, names: Sequence[str], changes: Sequence[Change]) -> Tensors:
    values = torch.stack([torch.cat([change.of[name].flatten() for name in names]) for change in changes])
    weights = torch.tensor([change.weight for change in changes], dtype=values.dtype)[:, None].expand_as(values)
    shapes = [changes[0].of[name].shape for name in names]
    cut = rule(values, weights).split([shape.numel() for shape in shapes])
    return {name: value.view(shape) for name, value, shape in zip(names, cut, shapes, strict=True)}


def _of_rows(rule: Rule, name: str, changes: Sequence[Change]) -> Tensor:
    """Own rows as their clients moved them, and what the others make of them by the rule, each by its weight."""
    stacked = torch.stack([change.of[name] for change in changes])  # (k, m, …)
    weight = torch.tensor([change.weight for change in changes], dtype=stacked.dtype)
    own = torch.zeros_like(stacked[0])
    others = weight[:, None].repeat(1, stacked.shape[1])  # (k, m): no client has a say here in its own row
    for k, change in enumerate(changes):
        own[change.index] = weight[k] * stacked[k, change.index]
        others[k, change.index] = 0.0
    size = stacked[0, 0].numel()
    flat, weights = stacked.flatten(1), others.repeat_interleave(size, dim=1)
    agreed = rule(flat, weights).view_as(own)
    heard = others.sum(0).view(-1, *[1] * (own.ndim - 1))
    return (own + heard * torch.where(heard > 0, agreed, 0.0)) / weight.sum()
