"""ε against system and routing accuracy, 100 clients of vectors: the figures of docs/privacy.md.

    python benchmarks/privacy_curve.py [--seed 0] [--out benchmarks/results/privacy_curve.jsonl]

Every client has its own centre (8 features, N(0, 2²), its rows around it with deviation 1) and one of four label rules:
60 rows to train on, 30 to test. A way to train is a number of releases; the noise is what gives ε with them. One line
per training is written as it ends, and trainings that are in the file already are not done again.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import nn

from fedspm import Federation
from fedspm.algorithms import build_algorithm
from fedspm.base.errors import TrainingFailed
from fedspm.federated.accountant import epsilon, gaussian_delta
from fedspm.federated.evaluation import evaluate
from fedspm.federated.task import Task
from fedspm.runs.config import resolve
from fedspm.training.engine import in_process
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round

FEATURES, CLASSES, RULES, DELTA = 8, 2, 4, 1e-5
EPSILONS = (math.inf, 10_000, 1000, 100, 30, 9, 3)
BLOCK = {"encoder": "mlp", "dimension": 8, "batch_size": 32, "steps": 20, "learning_rate": 0.1}
WAYS = {  # settings, releases a round, and whether rows are routed as they are and predicted by a linear map
    "C = 1, linear, 20 rounds": ({"components": 1, "rounds": 20}, 1, True),
    "C = 1, linear, 5 rounds": ({"components": 1, "rounds": 5}, 1, True),
    "C = 3, MLP, 20 rounds": ({"components": 3, "rounds": 20}, 2, False),
}


def clients_of(m: int, seed: int) -> Federation:
    random = np.random.default_rng([seed, 29])
    rules = random.normal(size=(RULES, FEATURES))
    parts: tuple[dict, dict] = ({}, {})
    for i in range(m):
        centre = 2 * random.normal(size=FEATURES)
        for part, n in zip(parts, (60, 30), strict=True):
            x = centre + random.normal(size=(n, FEATURES))
            part[f"client-{i:03d}"] = (x.astype(np.float32), ((x - centre) @ rules[i % RULES] > 0).astype(int))
    return Federation.from_arrays(*parts)


def noise_for(wanted: float, releases: int) -> float:
    """z, of which so many releases have this ε."""
    return 0.0 if math.isinf(wanted) else brentq(lambda z: epsilon(z, releases, DELTA) - wanted, 1e-4, 1e4)


def best_possible(wanted: float, m: int) -> float:
    """No router of a μ-private training sends more than a of the queries home: a ≤ Φ(Φ⁻¹((1 − a) / (m − 1)) + √2 μ).

    Swap the rows of two of m exchangeable clients: two clients change, so what the server sees moves by √2 μ, and a
    query that went home before goes to a client that no longer has its rows."""
    if math.isinf(wanted):
        return 1.0
    mu = brentq(lambda value: gaussian_delta(value, wanted) - DELTA, 1e-6, 1e4)

    def excess(a: float) -> float:
        return norm.cdf(norm.ppf((1 - a) / (m - 1)) + math.sqrt(2) * mu) - a

    return 1.0 if excess(1 - 1e-9) > 0 else brentq(excess, 1 / m, 1 - 1e-9)


def by_noised_means(federation: Federation, wanted: float, longest: float, seed: int) -> float:
    """Routing accuracy of one release alone: every client's mean, clipped and noised, and the nearest one for a row."""
    draw = torch.Generator().manual_seed(seed)
    means = torch.stack([part.x.mean(0) for part in federation.train])
    means = means * (longest / means.norm(dim=1, keepdim=True)).clamp_max(1)
    means = means + noise_for(wanted, 1) * longest * torch.randn(means.shape, generator=draw)
    right = [(torch.cdist(part.x, means).argmin(1) == i).float().mean() for i, part in enumerate(federation.test)]
    return float(torch.stack(right).mean())


def trained(federation: Federation, way: str, wanted: float, clip: float, seed: int) -> dict:
    settings, a_round, small = WAYS[way]
    noise = noise_for(wanted, a_round * settings["rounds"])
    config = resolve(
        {"seed": seed, "workers": 1, "clients_at_once": 25, "em": {"start": "random"}, **settings},
        {"predictor": BLOCK, "router": BLOCK},
        {"privacy": {"clip": clip, "noise": noise or 1e-9, "public_scale": [math.sqrt(5)]}},
    )
    networks = {"predictor": nn.Linear(FEATURES, 4), "router": nn.Flatten()} if small else None
    torch.manual_seed(seed)
    algorithm = build_algorithm(config, Task.of_federation(federation), networks)
    with in_process(config, federation) as engine:
        shared = begin(algorithm, engine)
        for number in range(config.rounds):
            shared = one_round(algorithm, engine, shared, number)
        found = evaluate(personalised(algorithm, engine, shared), federation, engine.map)
        sent = sum(value.numel() for name, value in shared.items() if not name.startswith(("input", "tau")))
        assert engine.releases.most == a_round * config.rounds
    names = ("system_accuracy", "average_accuracy", "routing_accuracy")
    return {name: round(found[name], 4) for name in names} | {"noise": noise, "parameters": sent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--clips", nargs="*", type=float, default=[3.0])
    parser.add_argument("--epsilons", nargs="*", type=float, default=list(EPSILONS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "privacy_curve.jsonl")
    given = parser.parse_args()
    torch.set_num_threads(1)
    federation = clients_of(given.clients, given.seed)
    known = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {tuple(line[key] for key in ("way", "epsilon", "clip", "seed", "clients")) for line in known}
    for wanted in given.epsilons:
        bound, means = best_possible(wanted, given.clients), by_noised_means(federation, wanted, 6.0, given.seed)
        for way in given.ways:
            for clip in given.clips:
                about = (way, str(wanted), clip, given.seed, given.clients)
                if about not in done:
                    line = dict(zip(("way", "epsilon", "clip", "seed", "clients"), about, strict=True))
                    try:
                        line |= trained(federation, way, wanted, clip, given.seed)
                    except TrainingFailed as error:  # too much noise for so many parameters
                        line |= {"failed": str(error)}
                    line |= {"routing_bound": round(bound, 4), "routing_by_one_mean": round(means, 4)}
                    print(json.dumps(line), flush=True)
                    given.out.parent.mkdir(exist_ok=True)
                    with given.out.open("a") as file:
                        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
