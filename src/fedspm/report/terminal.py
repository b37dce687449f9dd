"""What a person sees in the terminal: the progress of a grid with the time left, tables, and errors of one sentence."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fedspm.base.printable import printable, printable_lines


class PlainConsole(Console):
    """Shows other people's words as they are: `[/b]` and `:cat:` are names, and control characters are escapes."""

    def __init__(self, *, stderr: bool = False):
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Strings are one line each, after line breaks that they begin with."""
        super().print(*(_one_line(each) if isinstance(each, str) else each for each in objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))


console, errors = PlainConsole(), PlainConsole(stderr=True)


def _one_line(text: str) -> str:
    line = text.lstrip("\n")
    return "\n" * (len(text) - len(line)) + printable(line)


SCORES = {"auroc": "AUROC", "auprc": "AUPRC", "f1": "F1", "brier": "Brier", "log_loss": "log loss", "ece": "ECE"}


def counted(number: int, what: str) -> str:
    """`1 round`, `2 rounds`"""
    return f"{number:,} {what}{'s' * (number != 1)}"


class GridProgress:
    """A bar for the whole grid with the time left, one for each training that runs, a line for each that ended."""

    def __init__(self, progress: Progress, done: int, total: int, left: Callable[[], float | None]):
        self._progress = progress
        self._left = left
        self._all = progress.add_task("all", total=total, completed=done, left="")
        self._running: dict[str, TaskID] = {}

    def began(self, name: str, rounds: int, done: int) -> None:
        self._running[name] = self._progress.add_task(f"  {printable(name)}", total=rounds, completed=done, left="")

    def moved(self, name: str, round: int) -> None:
        task = self._running[name]
        before = next(int(each.completed) for each in self._progress.tasks if each.id == task)
        self._progress.update(task, completed=round)
        self._progress.update(self._all, advance=round - before, left=_duration(self._left()))

    def ended(self, name: str, line: str) -> None:
        self._progress.remove_task(self._running.pop(name))
        self._progress.update(self._all, left=_duration(self._left()))
        self._progress.console.print(line, soft_wrap=True)

    def say(self, line: str) -> None:
        self._progress.console.print(line, soft_wrap=True)


@contextmanager
def grid_progress(done: int, total: int, left: Callable[[], float | None]) -> Iterator[GridProgress]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=2) as progress:
        yield GridProgress(progress, done, total, left)


def _duration(seconds: float | None) -> str:
    if not seconds:  # not known yet, or done
        return ""
    hours, rest = divmod(round(seconds), 3600)
    return (
        f"· about {hours} h {rest // 60:02d} min left" if hours else f"· about {rest // 60} min {rest % 60:02d} s left"
    )


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str, fold: bool = False) -> Group:
    """First column to the left, the others to the right, and above them a title that may be wider than the table.
    Cells are cut off where the terminal ends, or go over several lines."""
    table = Table()
    for i, heading in enumerate(headings):
        justify: JustifyMethod = "right" if i else "left"
        table.add_column(printable(heading), justify=justify, no_wrap=not fold, overflow="fold" if fold else "ellipsis")
    for row in rows:
        table.add_row(*map(printable, row))
    return Group(Text(_one_line(title), style="bold"), table)


def results_table(metrics: dict[str, Any], title: str) -> Table:
    """System, average and routing accuracy and the balanced one of the system's answers, of all clients and of each."""
    table = Table(title=_one_line(title), title_justify="left", title_style="bold")
    table.add_column("")
    for heading in ("system", "average", "routing", "balanced", "rows"):
        table.add_column(heading, justify="right")
    rows = sum(client["rows"] for client in metrics["clients"].values())
    keys = ("system_accuracy", "average_accuracy", "routing_accuracy", "balanced_accuracy")
    everybody = [metrics.get(key) for key in keys]
    table.add_row("all clients", *map(_share, everybody), f"{rows:,}", style="bold", end_section=True)
    keys = ("system_accuracy", "accuracy", "routing_accuracy", "balanced_accuracy")
    for name, client in metrics["clients"].items():
        table.add_row(printable(name), *(_share(client.get(key)) for key in keys), f"{client['rows']:,}")
    return table


def scores_table(metrics: dict[str, Any]) -> Group | None:
    """AUROC and the like of the system's answers, of all clients and of each; None where they were not computed."""
    if "scores" not in metrics:
        return None
    lines = {"all clients": metrics} | metrics["clients"]
    rows = [
        [printable(name), *(_share(line["scores"]["system"][key]) for key in SCORES)]
        for name, line in lines.items()
        if "scores" in line
    ]
    return plain_table(["", *SCORES.values()], rows, "\nthe system's answers")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
