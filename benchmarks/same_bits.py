"""Did a refactoring change a bit? Digests of small trainings, likelihood fits and help texts, before and after it.

python benchmarks/same_bits.py write FILE.json [--only PATTERN] [--jobs 2]     PYTHONPATH says which source is digested
python benchmarks/same_bits.py compare OLD.json NEW.json [--only PATTERN]      exit code 1 if anything differs

Modules may move and be renamed between the two, so this uses only the command line and the public names of `fedspm` and
`fedspm.likelihood`. Tensors may move between files, so one is known by its owner and its name, never by its file.
"""

import argparse
import difflib
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock
from typing import Any

Found = dict[str, Any]  # what is digested, by a name that survives the refactoring
METHODS = ("fedspm", "feddrm", "fedgmm", "fedem", "cluster-fl", "ditto", "fedbabu", "fedavg-ft", "fedprox", "fedavg")
ROUTING = METHODS[:3]
SMALL = "--rounds 6 --components 2 --eval-every 3 --device cpu --workers 1 --out run"  # an option given later wins
SMALL += " --set predictor.batch_size=16 --set router.batch_size=16"  # fewer rows than any client has
CASES = {  # data and options of a training, and commands that follow it
    **{f"{name}-default": f"../table.csv --algorithm {name}" for name in METHODS},
    **{f"{name}-paper-w2": f"../table.csv --algorithm {name} --preset paper --workers 2" for name in METHODS},
    "fedspm-default-w2": "../table.csv --workers 2",
    "fedspm-paper": "../table.csv --preset paper",
    "fedspm-cx-default": "../table.csv --variant cx",
    "fedspm-cx-paper-w2": "../table.csv --variant cx --preset paper --workers 2",
    "narrowed-fedspm": "../table.csv --rounds 3 --horizon 6 | resume run --rounds 6",
    "narrowed-fedbabu": "../table.csv --rounds 3 --horizon 6 --algorithm fedbabu | resume run --rounds 6",
    "stopped": "../table.csv --rounds 12 --eval-every 1 | resume run",  # see `fedspm`
    "noise": "../table.csv --workers 2 --set privacy.clip=0.5 --set privacy.noise=0.05",
    "half-precision": "../table.csv --workers 2 --set wire.precision=half",
    "one-exchange": "../table.csv --workers 2 --set wire.exchanges=1",
    "partial": "../table.csv --workers 2 --set clients_per_round=2",
    "incremental": "../table.csv --workers 2 --set em.e_step=incremental",
    "joint": "../table.csv --algorithm feddrm --set options.joint=true",
    "diagnosed": "../table.csv --diagnose-every 3",
    "resnet-group": "../images.npz --rounds 4 --workers 2",
    "resnet-batch": "../images.npz --rounds 4 --preset paper --algorithm fedavg --workers 2",
    "resnet-batch-cx": "../images.npz --rounds 4 --preset paper --variant cx",
    "cnn": "../images.npz --algorithm ditto --set predictor.encoder=cnn",
    "together-fedspm": "../many.csv --workers 2 --set clients_at_once=12",
    "together-fedavg": "../many.csv --workers 2 --set clients_at_once=12 --algorithm fedavg",
    # Images that the package divides and shifts itself, as it does with none of the above.
    "divided": "fashion-sample --algorithm fedavg --rounds 2 --clients 4 --set predictor.encoder=mlp",
    "joined-left": "../table.csv | onboard run --name site-9 --data ../newcomer.csv --out joined"
    " | remove joined --name site-1 --out left",
    "exported": "../table.csv | export run --out bundle | route run run/samples/queries.csv --json",
    # Ray starts processes of its own, so these have the machine to themselves.
    "flower-fedspm": "../table.csv --engine flower-simulation",
    "flower-fedavg": "../table.csv --engine flower-simulation --algorithm fedavg",
}
LOADING = Lock()  # models are opened in this process, by one thread at a time


def make_data(folder: Path) -> None:
    """Sites of different sizes with two hidden subgroups, many small ones, a newcomer, and tiny grey images."""
    import numpy as np

    draw = np.random.default_rng(7)
    rule = draw.normal(size=(5, 3))

    def write_table(name: str, sizes: dict[int, int]) -> None:
        lines = ["client,label,a,b,c,d,e"]
        for site, n in sizes.items():
            group, x = draw.integers(0, 2, n), draw.normal(size=(n, 5))
            label = ((x @ rule).argmax(1) + group) % 3
            x = x + 0.5 * site + np.outer(group, [4, 0, 0, 0, 0])
            lines += [f"site-{site},{y}," + ",".join(map(str, row.tolist())) for row, y in zip(x, label, strict=True)]
        (folder / name).write_text("\n".join(lines) + "\n")

    write_table("table.csv", {0: 40, 1: 75, 2: 130, 3: 60})
    write_table("many.csv", {site: 24 + site for site in range(24)})
    write_table("newcomer.csv", {9: 50})
    owner = np.repeat([0, 1, 2], [40, 60, 80])
    x = (draw.integers(0, 200, (180, 8, 8)) + 25 * owner[:, None, None]).astype(np.uint8)
    np.savez(folder / "images.npz", x=x, y=draw.integers(0, 3, 180), client=[f"site-{i}" for i in owner])


def fedspm(*command: str, cwd: Path, stop: bool = False) -> str:
    """What the command line prints; `stop`: interrupt it after its first evaluation."""
    words = [sys.executable, "-m", "fedspm", *command]
    process = subprocess.Popen(words, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while stop and process.poll() is None and not any(cwd.glob("run/*.jsonl")):
        time.sleep(0.01)
    if stop:
        process.send_signal(signal.SIGINT)
    said, complaint = process.communicate()
    if process.returncode != (130 if stop else 0):
        raise RuntimeError(f"fedspm {' '.join(command)}: exit code {process.returncode}: {(complaint or said)[-2000:]}")
    return said


def digest(array: Any) -> str:
    """SHA-256 of dtype, shape and bytes."""
    import numpy as np

    array = np.asarray(array, order="C")
    return hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes()).hexdigest()


def tensors(folder: Path) -> Found:
    """Those of the newest round, and those beside rounds or at the top that belong to none; of a bundle, all."""
    from safetensors.numpy import load_file

    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.safetensors"))}
    rounds = {name: int(number[1]) for name in paths if (number := re.search(r"round\D?(\d+)", name))}
    newest, found = max(rounds.values(), default=0), {}
    beside = {name.split("/")[0] for name in rounds or paths}  # not what Flower's sites keep on disks of their own
    for name, path in paths.items():
        if rounds.get(name, newest) != newest or ("/" in name and name.split("/")[0] not in beside):
            continue
        client = re.search(r"(site|client)-\d+", name)
        owner = client[0] if client else "sketch" if "sketch" in name else "shared"
        for tensor, array in load_file(path).items():
            key, value = f"{owner}/{tensor}", digest(array)
            found[key if found.get(key, value) == value else f"{key} of {path.name}"] = value
    return found


def figures(folder: Path) -> Found:
    """The last line of every record, the final evaluation among them, without what is a matter of time or traffic."""

    def flat(value: Any, name: str) -> Found:
        if not isinstance(value, dict):
            return {} if re.search("seconds|bytes", name) else {name: value}
        return {k: v for key, inner in value.items() for k, v in flat(inner, f"{name}/{key}").items()}

    last = {path.stem: json.loads(path.read_text().splitlines()[-1]) for path in sorted(folder.glob("*.jsonl"))}
    return flat(last, "last")


def answers(folder: Path) -> Found:
    """What the model says about rows that nobody has seen, and a fingerprint of those that it has."""
    import numpy as np

    from fedspm import FederatedClassifier

    manifest = json.loads((folder / "manifest.json").read_text())
    x = np.random.default_rng(3).uniform(-1, 3, (5, *manifest["shape"])).astype(np.float32)
    with LOADING:
        model = FederatedClassifier.load(folder)
        found = {f"answer/{name}": digest(model.predict_proba(x, client=name)) for name in model.client_names_}
        found |= {"answer/system": digest(model.predict_proba(x)), "data": manifest["data_fingerprint"]}
        return found | ({"answer/route": digest(model.route(x))} if model.algorithm in ROUTING else {})


def trained(case: str, cwd: Path) -> Found:
    """Everything about every folder that the commands of a case leave."""
    cwd.mkdir()
    training, *others = CASES[case].split(" | ")
    data, *options = training.split()
    fedspm("train", "--data", data, *SMALL.split(), *options, cwd=cwd, stop=case == "stopped")
    said = {other: fedspm(*other.split(), cwd=cwd) for other in others}
    found: Found = {f"said/{other}": text for other, text in said.items() if other.startswith("route")}
    for folder in sorted(path for path in cwd.iterdir() if path.is_dir()):
        of_run = figures(folder) | answers(folder) if (folder / "manifest.json").exists() else {}
        found |= {f"{folder.name}/{key}": value for key, value in (tensors(folder) | of_run).items()}
    return found


def likelihood() -> Found:
    import numpy as np

    from fedspm.likelihood import fit_drm, solve_multipliers

    draw, found = np.random.default_rng(11), {}
    scalars = [draw.normal(shift, 1 + shift / 4, n) for shift, n in ((0, 50), (0.5, 80), (1, 65))]
    vectors = [draw.normal(shift, 1, (n, 3)) for shift, n in ((0, 60), (0.4, 45))]
    fits = {"scalars": fit_drm(scalars, lambda x: np.c_[x, x**2]), "vectors": fit_drm(vectors, lambda x: x, 1)}
    for name, fit in fits.items():
        parts = {key: getattr(fit, key) for key in ("gamma", "xi", "log_el", "weights", "covariance")}
        parts |= {"errors_gamma": fit.standard_errors.gamma, "errors_xi": fit.standard_errors.xi}
        found |= {f"drm/{name}/{key}": digest(value) for key, value in (parts | {"equal": fit.test_equal()}).items()}
    rows, ratios = draw.normal(size=(120, 4)), draw.normal(0, 3, (90, 3))
    near = np.r_[draw.exponential(size=(80, 2)), [[-0.01, -0.01], [-0.02, 0.01]]]  # zero is only just inside the hull
    solved = {"rows": solve_multipliers(rows), "near": solve_multipliers(near)}
    solved["dependent"] = solve_multipliers(np.c_[rows, rows[:, 0] + rows[:, 1]])
    solved["ratios"] = solve_multipliers(log_ratio=ratios - np.log(np.exp(ratios).mean(0)))
    keys = ("multipliers", "weights", "log_weights", "sum_log_weights", "iterations")
    return found | {f"el/{name}/{key}": digest(getattr(one, key)) for name, one in solved.items() for key in keys}


def helps(cwd: Path, *command: str) -> Found:
    """The help of a command and of all below it."""
    found = {" ".join(("fedspm", *command)): (text := fedspm(*command, "--help", cwd=cwd))}
    panel = re.search(r"─ Commands ─.*?╰", text, re.DOTALL)
    for name in re.findall(r"^│ ([\w-]+)", panel[0] if panel else "", re.MULTILINE):
        found |= helps(cwd, *command, name)
    return found


def head() -> Found:
    """What made the digests."""
    import numpy
    import torch

    import fedspm as package

    torch.set_num_threads(1)
    source = Path(package.__file__).parent
    git = ["git", "-C", str(source)]
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    changed = subprocess.check_output([*git, "status", "--porcelain", "."], text=True)
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__}
    return {"commit": commit + " and changes" * bool(changed), **versions, "cpu": cpu[1] if cpu else "unknown"}


def timed(case: str, folder: Path) -> tuple[Found, float]:
    """The digests of a case, or why there are none: one that fails must not cost the others."""
    began = time.perf_counter()
    special = {"likelihood": likelihood, "help": lambda: helps(folder)}
    try:
        found = special[case]() if case in special else trained(case, folder / case)
    except Exception as error:
        found = {"failed": f"{type(error).__name__}: {error}"}
    return found, time.perf_counter() - began


def write(out: Path, only: str, jobs: int) -> int:
    # One thread each, here and in every command: sums in another order are other bits.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ |= {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    if given := os.environ.get("PYTHONPATH"):  # commands run in other folders
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, given.split(os.pathsep)))
    result: dict[str, Any] = {"head": head(), "cases": {}}
    chosen = [case for case in ("help", "likelihood", *CASES) if fnmatch(case, only)]
    partial = out.with_name(f".{out.name}.partial")
    with tempfile.TemporaryDirectory(prefix="same-bits-") as name:
        make_data(Path(name))
        for lanes, flower in ((jobs, False), (1, True)):
            with ThreadPoolExecutor(lanes) as pool:
                work = [case for case in chosen if case.startswith("flower") == flower]
                futures = {pool.submit(timed, case, Path(name)): case for case in work}
                for future in as_completed(futures):
                    found, seconds = future.result()
                    result["cases"][futures[future]] = found
                    partial.write_text(json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False))
                    partial.replace(out)
                    done = f"{len(result['cases']):3}/{len(chosen)} {seconds:6.1f} s  {futures[future]}"
                    print(done, found.get("failed", ""), flush=True)
    return int(not chosen or any("failed" in found for found in result["cases"].values()))


def shown(old: Any, new: Any) -> str:
    """What differs: of a text its lines, of a digest only that it does."""
    if isinstance(old, str) and "\n" in old:
        lines = list(difflib.unified_diff(old.split("\n"), new.split("\n"), n=0, lineterm=""))[2:]
        return "".join(f"\n      {line}" for line in lines[:12])
    return "" if isinstance(old, str) and len(old) == 64 else f"  {old} → {new}"


def compare(old: Path, new: Path, only: str) -> int:
    before, after = (json.loads(path.read_text()) for path in (old, new))
    print("".join(f"{key}: {a} → {b}\n" for key, a in before["head"].items() if (b := after["head"][key]) != a), end="")
    wrong = 0
    for case in sorted(case for case in before["cases"] | after["cases"] if fnmatch(case, only)):
        a, b = before["cases"].get(case, {}), after["cases"].get(case, {})
        if not (a and b):
            print(f"{case}: only in {old.name if a else new.name}")
            wrong += 1
            continue
        lines = [f"differs: {key}{shown(a[key], b[key])}" for key in a if key in b and a[key] != b[key]]
        lines += [f"only in {old.name}: {key}" for key in a if key not in b]
        lines += [f"only in {new.name}: {key}" for key in b if key not in a]
        lines += [f"failed on both sides: {a['failed']}"] if "failed" in a and "failed" in b else []
        print(f"{case}: {len(lines)} of {len(a | b)} not the same" if lines else f"{case}: same ({len(a)})")
        print("".join(f"    {line}\n" for line in lines), end="")
        wrong += bool(lines)
    print(f"{wrong} cases are not the same" if wrong else "all the same")
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, files in (("write", ["out"]), ("compare", ["old", "new"])):
        command = commands.add_parser(name)
        for file in files:
            command.add_argument(file, type=Path)
        command.add_argument("--only", default="*", help="cases by name, e.g. 'fedspm-*'")
    commands.choices["write"].add_argument("--jobs", type=int, default=2, help="cases at the same time")
    given = vars(parser.parse_args())
    return {"write": write, "compare": compare}[given.pop("command")](**given)


if __name__ == "__main__":
    sys.exit(main())
