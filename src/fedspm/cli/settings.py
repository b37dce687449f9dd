"""fedspm settings: what can be set, and what it means."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from fedspm.base.errors import FedSPMError
from fedspm.base.printable import printable_json
from fedspm.cli.app import app
from fedspm.cli.options import AsJson
from fedspm.cli.output import say
from fedspm.report.terminal import console


@app.command()
def settings(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD]...", help="Only settings that have all of these words.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what a configuration file and --set may say: key, default, values, meaning."""
    from fedspm.runs.settings_reference import settings

    found = [each for each in settings() if all(word.lower() in str(each).lower() for word in words or [])]
    if not found:
        raise FedSPMError(f"no setting has {' and '.join(map(repr, words or []))} in it; `fedspm settings` lists all")
    if as_json:
        print(printable_json([asdict(each) for each in found], default=str))
        return
    for before, each in zip([found[0], *found], found, strict=False):
        if each.table != before.table:
            console.print()
        line = Text.assemble((each.key, "bold"), f" = {each.defaults}", (f"   ({each.values})", "dim"))
        console.print(line, soft_wrap=True)
        console.print(Padding(Text(each.meaning), (0, 0, 0, 4), expand=False))
    say("\nset one with --set KEY=VALUE, or in a CONFIG.toml: what is before the dot is a table there")
