"""What a tuning writes: tuning.md, chosen.toml, trials.jsonl, and a picture of the accuracy over every setting."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fedspm.base.files import write_atomically
from fedspm.base.layers import dotted
from fedspm.experiments.statistics import spread
from fedspm.experiments.tables import markdown_table
from fedspm.report.figures import over_values, rendered

if TYPE_CHECKING:
    from fedspm.experiments.tuning.tune import Outcome, Tuning

HEADINGS = ("settings", "accuracy", "rounds", "seconds")


def trial_rows(outcomes: Sequence["Outcome"]) -> list[list[str]]:
    """The trials of a method in the order they are given: settings, mean ± deviation over seeds in per cent."""
    rows = []
    for each in outcomes:
        mean, deviation = spread(each.scores)
        figure = f"{100 * mean:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")
        lost = len(each.seeds) - len(each.scores)
        last = [curve[-1] for curve in each.curves.values()]
        seconds = sum(line["seconds"] for line in last) / len(last)
        rows.append(
            [each.settings, figure + (f" ({lost} failed)" if lost else ""), str(last[0]["round"]), f"{seconds:.0f}"]
        )
    return rows


def profile(outcomes: Sequence["Outcome"], key: str) -> dict[str, Mapping[int, float]]:
    """By value of a key the scores of the best trial that has it: the curve over this setting."""
    best: dict[Any, Outcome] = {}
    for each in outcomes:
        value = each.trial[key]
        if value not in best or each.score > best[value].score:
            best[value] = each
    order = sorted(best) if all(isinstance(value, int | float) for value in best) else list(best)
    return {str(value): best[value].scores for value in order}


def write_page(folder: Path, tuning: "Tuning", command: str) -> None:
    """All that is known so far; nothing while there is nothing."""
    if not tuning.outcomes:
        return
    seeds = ", ".join(map(str, tuning.outcomes[0].seeds))
    page = ["# Tuning", "", f"`{command}`", ""]
    page += [f"{tuning.metric.capitalize()} accuracy on validation rows in per cent, last round, seeds {seeds}.", ""]
    for row in tuning.spaces:
        if not (outcomes := tuning.of(row)):
            continue
        rows = trial_rows(outcomes)
        if row in tuning.chosen:
            rows[0] = [f"**{rows[0][0]}**", *rows[0][1:]]
        page += [f"## {row}", "", *markdown_table(HEADINGS, rows), ""]
        if edge := tuning.at_the_edge(row):
            page += [f"At the edge of what was tried, so that the best may lie beyond: {', '.join(edge)}.", ""]
    keys = list(dict.fromkeys(key for space in tuning.spaces.values() for key in space))
    for key in keys:
        lines = {row: profile(tuning.of(row), key) for row, space in tuning.spaces.items() if key in space}
        figure = over_values(key, f"{tuning.metric} accuracy", {row: line for row, line in lines.items() if line})
        for kind in ("svg", "png"):
            write_atomically(folder / f"{key}.{kind}", rendered(figure, kind))
        page += [f"![accuracy over {key}, the other settings at their best]({key}.png)", ""]
    if tuning.failed:
        page += [f"Failed: {tuning.failed}.", ""]
    write_atomically(folder / "tuning.md", "\n".join(page))
    write_atomically(folder / "trials.jsonl", "".join(json.dumps(_line(each)) + "\n" for each in tuning.outcomes))
    write_atomically(folder / "chosen.toml", tomli_w.dumps({row: dotted(t) for row, t in tuning.chosen.items()}))


def _line(each: "Outcome") -> dict[str, Any]:
    kept = ("round", "seconds", "system_accuracy", "average_accuracy", "routing_accuracy")
    curves = {
        str(seed): [{name: line[name] for name in kept if name in line} for line in curve]
        for seed, curve in each.curves.items()
    }
    return {"method": each.row, "settings": dict(each.trial), "scores": dict(each.scores), "curves": curves}
