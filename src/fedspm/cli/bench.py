"""fedspm bench: measure, alternating both sides in one run."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedspm.base.errors import FedSPMError
from fedspm.cli.app import app
from fedspm.cli.options import AsJson, Set, layers
from fedspm.cli.output import say
from fedspm.report.terminal import console, plain_table

WHAT = ("accuracy", "round", "scale", "peers", "route", "profile", "serving", "robustness", "tables")


@app.command()
def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="accuracy|round|scale|peers|route|profile|serving|robustness|tables",
            help="accuracy: CPU seconds and rounds until given accuracies, FedAvg, FedDRM and FedSPM, and the same "
            "FedAvg on peers that are set up. round: a round against bare tensor work. scale: 8 to 1,000 clients. "
            "peers: FedAvg here, on pfl and "
            "on Flower's simulation, which are set up in the user's cache. route: queries a second. profile: where the "
            "time of a round goes. serving: load on `fedspm serve all` of a --run. robustness: one lying client, "
            "every lie and every rule of `robust`. tables: accuracy beside scikit-learn on small tables, five seeds.",
        ),
    ] = "accuracy",
    algorithm: Annotated[str, typer.Option(help="Whose round; peers do FedAvg.")] = "fedspm",
    variant: Annotated[str, typer.Option(help="1x or cx.")] = "1x",
    data: Annotated[
        str | None, typer.Option(help="Data set. (default: fashion-mnist; robustness: fashion-sample)")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repeats; medians are reported.")] = 5,
    run: Annotated[Path | None, typer.Option(metavar="RUN", help="serving: folder that `fedspm train` wrote.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="serving: how long each load lasts.")] = 20,
    kill_every: Annotated[
        float | None, typer.Option(min=0.1, help="serving: also kill a node every so many seconds. (default: never)")
    ] = None,
    targets: Annotated[str, typer.Option(help="accuracy: accuracies to reach, with commas.")] = "0.6,0.7,0.8",
    rules: Annotated[
        str | None, typer.Option(help="robustness: rules, with commas between them. (default: all)")
    ] = None,
    lies: Annotated[str | None, typer.Option(help="robustness: lies, with commas between them. (default: all)")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="robustness: file of finished trainings, which are not done again (default: robustness.jsonl); "
            "tables: folder of tables.md and tables.jsonl (default: benchmarks)."
        ),
    ] = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Measure, alternating both sides in one run."""
    from fedspm import bench as library

    if what not in WHAT:
        raise FedSPMError(f"there is no benchmark {what!r}; known are {', '.join(WHAT)}")
    data = data or ("fashion-sample" if what == "robustness" else "fashion-mnist")
    if what == "peers":
        if set_:
            raise FedSPMError("bench peers: the job is the same on every side; --set is for round, scale and route")
        result = library.bench_peers(data, repeats)
    elif what == "tables":
        library.bench_tables(folder := out or Path("benchmarks"))
        say(f"tables    {folder}/tables.md")
        return
    elif what == "accuracy":
        result = library.bench_accuracy(layers(None, {"data.name": data}, set_), parse_accuracies(targets))
    elif what == "serving":
        if run is None:
            raise FedSPMError("bench serving: say which run is served, with --run RUN")
        result = library.bench_serving(run, repeats, seconds, kill_every)
    elif what == "robustness":
        chosen = {"rules": rules, "lies": lies}
        names = {key: [each.strip() for each in value.split(",")] for key, value in chosen.items() if value}
        result = library.bench_robustness(
            layers(None, {"algorithm": algorithm, "variant": variant, "data.name": data}, set_),
            out or Path("robustness.jsonl"),
            **names,
        )
    else:
        measure = getattr(library, f"bench_{what}")
        result = measure(layers(None, {"algorithm": algorithm, "variant": variant, "data.name": data}, set_), repeats)
    if as_json:
        print(json.dumps(result))
        return
    machine = result["machine"]
    what_of = ", ".join([result["algorithm"], result["data"], *(set_ or [])])
    say(f"{what_of}; {machine['processor']}, {machine['cores']} cores, {machine['torch']}")
    {
        "accuracy": show_accuracy,
        "round": _show_round,
        "scale": _show_scale,
        "peers": show_peers,
        "route": _show_route,
        "profile": _show_profile,
        "serving": _show_serving,
        "robustness": _show_robustness,
    }[what](result)


def parse_accuracies(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise FedSPMError(f"--targets {text!r}: write accuracies with commas, for instance 0.6,0.7,0.8") from None


def show_accuracy(result: dict[str, Any]) -> None:
    headings = ("", *(f"{target:g}" for target in result["targets"]), "best", "start CPU s")
    for title, races in (
        (f"methods, at most {result['rounds']} rounds; evaluation is not counted", result["methods"]),
        ("the same FedAvg of a small CNN; start and evaluation are counted", result["peers"]),
    ):
        rows = [
            [
                name,
                *(
                    f"{each['cpu_seconds']:.1f} s, {each['rounds']:g} rounds" if each else "not reached"
                    for each in found["reached"].values()
                ),
                f"{found['best']:.3f}",
                f"{found['start_cpu_seconds']:.1f}",
            ]
            for name, found in races.items()
        ]
        console.print(plain_table(headings, rows, f"CPU seconds and rounds to system accuracy: {title}"))
    if result["not_set_up"]:
        say(f"not set up, and so not run: {', '.join(result['not_set_up'])}; `fedspm bench peers` sets them up")


def _show_round(result: dict[str, Any]) -> None:
    workers = result["workers"]
    against = {
        "one worker": f"{result['round_over_bare']:.3f} × bare",
        f"{workers} workers": f"{result['speed_up_of_workers']:.2f} times as fast as one",
        f"bare, {workers} processes": f"workers reach {result['workers_of_processes']:.3f} of it",
    }
    cpu = {name: f"{seconds:.3f}" for name, seconds in result["median_cpu_seconds"].items()}
    rows = [
        [name, f"{seconds:.3f}", cpu.get(name, ""), against.get(name, "")]
        for name, seconds in result["median_seconds"].items()
    ]
    title = f"a round's work over {result['rows']:,} rows, median of {result['repeats']}"
    console.print(plain_table(("", "seconds", "CPU s", "against"), rows, title))
    say(f"× bare is of CPU seconds; {result['passes']['redundant']:,} rows went through an encoder once too often")


def _show_scale(result: dict[str, Any]) -> None:
    rows = [
        [
            f"{size['clients']:,}",
            f"data {size['fixed']}",
            f"{size['rows']:,}",
            f"{size['seconds']:.2f}",
            f"{size['idle_ms_a_client']:.2f}",
            f"{size['peak_mb']:,.0f}",
        ]
        for size in result["sizes"]
    ]
    headings = ("clients", "fixed", "rows", "CPU s a round", "CPU ms a client at rest", "MB peak")
    console.print(plain_table(headings, rows, "one worker, a process a size"))
    for fixed, exponent in result["growth_exponent"].items():
        if exponent is not None:
            say(f"data {fixed} fixed: CPU seconds grow like (rows in batches)^{exponent:.2f}")


def show_peers(result: dict[str, Any]) -> None:
    headings = ("", "s", "CPU s", "× bare", "ms beyond", "start s", "start CPU s")
    for name, job in result["jobs"].items():
        rows = [
            [
                side,
                f"{each['median']['seconds']:.3f}",
                f"{each['median']['cpu_seconds']:.3f}",
                f"{each['over_bare']['cpu_seconds']:.3f}",
                f"{1000 * each['beyond_bare']['cpu_seconds']:.1f}",
                f"{each['start']['seconds']:.1f}",
                f"{each['start']['cpu_seconds']:.1f}",
            ]
            for side, each in job["sides"].items()
        ]
        title = f"{name}: {result['clients']} clients, {job['steps']} steps of {job['batch_size']} rows each"
        console.print(plain_table(headings, rows, f"{title}, median of {result['repeats']}"))
    say("a round; × bare and ms beyond it are of CPU seconds")
    for what, over in result["figures"].items():
        say(f"{what}: {over['seconds']:.2f} by the clock, {over['cpu_seconds']:.2f} in CPU seconds")


def _show_route(result: dict[str, Any]) -> None:
    rows = [
        [str(each["batch"]), f"{each['rows_per_second']:,.0f}", f"{each['of_bare']:.3f}", f"{each['overhead_ms']:.3f}"]
        for each in result["batches"]
    ]
    console.print(plain_table(("batch", "rows a second", "of bare", "ms beyond bare"), rows, "one thread"))


def _show_profile(result: dict[str, Any]) -> None:
    rows = [[name, f"{each:.3f}", f"{each / result['cpu_seconds']:.1%}"] for name, each in result["parts"].items()]
    rows.append(["a round", f"{result['cpu_seconds']:.3f}", ""])
    title = f"CPU seconds of a round over {result['rows']:,} rows, mean of {result['repeats']}"
    console.print(plain_table(("part", "CPU s", "share"), rows, title))
    say(
        f"an evaluation {result['evaluation_cpu_seconds']:.2f} s, a checkpoint {result['checkpoint_cpu_seconds']:.3f} s"
    )


def _show_serving(result: dict[str, Any]) -> None:
    headings = ("rows", "callers", "killed", "requests", "failed", "images a second", "median ms", "99 % ms")
    rows = [
        [
            *(str(each.get(key, "")) for key in ("rows", "callers", "killed", "requests", "failed")),
            f"{each['images_per_second']:,}",
            f"{each['median_ms']:.1f}",
            f"{each['p99_ms']:.1f}",
            f"{each['cpu_ms_an_image']:.3f}" if "bare" in each else "",
            f"{each['bare']['cpu_ms_an_image']:.3f}" if "bare" in each else "",
            f"{each['bare']['median_ms']:.1f}" if "bare" in each else "",
        ]
        for each in result["loads"]
    ]
    beside = ("CPU ms an image", "bare CPU ms", "bare median ms")
    console.print(plain_table((*headings, *beside), rows, f"{result['seconds']:g} s each"))


def _show_robustness(result: dict[str, Any]) -> None:
    from fedspm.bench.robustness import attack_table

    title = f"system / routing accuracy (points of system lost), rN: refused in N of {result['rounds']} rounds"
    console.print(plain_table(*attack_table(result["records"]), f"{result['liar']} lies; {title}"))
