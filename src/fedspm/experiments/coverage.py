"""How much of a plan was trained: what is missing, and where a training had less than the plan says."""

from collections.abc import Iterable, Sequence

from fedspm.experiments.plan import Key, Plan
from fedspm.experiments.records import Records
from fedspm.runs.compatibility import changed
from fedspm.runs.config import recorded, resolve

NAMED = 6  # trainings whose names stand in a mark


def missing(plan: Plan, records: Records) -> list[str]:
    """What the plan has and nobody has trained, panel by panel; seeds that lack the same rows together."""
    lines = []
    for panel in plan.panels:
        lacking: dict[str, list[int]] = {}
        for seed in plan.seeds:
            rows = [row for row in plan.rows_of(panel) if (panel.name, row, seed) not in records.lines]
            if rows:
                which = "all rows" if len(rows) == len(plan.rows_of(panel)) else ", ".join(rows)
                lacking.setdefault(which, []).append(seed)
        for which, seeds in lacking.items():
            lines.append(f"{panel.title}, {named_seeds(seeds)}: {which}")
    return lines


def reductions(plan: Plan, records: Records) -> list[str]:
    """Where less was trained than the plan says: rounds or other settings, and how many trainings."""
    done, wanted = len(records.lines.keys() & plan.keys()), len(plan.keys())
    return other_settings(plan, records) + ([f"{done} of {wanted} trainings"] if done < wanted else [])


def other_settings(plan: Plan, records: Records) -> list[str]:
    """What differs from the plan in trainings that were done, and in which of them if not in all."""
    found: dict[str, list[Key]] = {}
    for line in records.ordered(plan):
        given = recorded(line["settings"])
        wanted = resolve(plan.settings_of(plan.panel(line["panel"]), line["method"]))
        said = [
            f"{key} = {now} instead of {asked}"
            for key, (asked, now) in changed(wanted, given).items()
            if key not in ("seed", "rounds", "horizon", "eval_every")
        ]
        if given.schedule != wanted.schedule:
            said.append(f"a schedule of {given.schedule} rounds instead of {wanted.schedule}")
        if given.rounds < (whole := min(wanted.rounds, given.schedule)):
            said.append(f"the first {given.rounds} rounds of {whole}")
        for each in said:
            found.setdefault(each, []).append((line["panel"], line["method"], line["seed"]))
    return [each if len(of) == len(records.lines) else f"{each} ({_named(of, records)})" for each, of in found.items()]


def _named(keys: Sequence[Key], records: Records) -> str:
    """Trainings by what tells them apart from the others: panel, row, seed."""
    several = [len({key[i] for key in records.lines}) > 1 for i in range(3)]
    names = dict.fromkeys(
        " ".join(str(part) for part, tells in zip(key, several, strict=True) if tells) for key in keys
    )
    return ", ".join([*names][:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def named_seeds(numbers: Iterable[int]) -> str:
    text = ", ".join(map(str, sorted(numbers)))
    return f"seed{'s' if ',' in text else ''} {text}"
