"""Where the errors of a trained run come from: rows it has not seen, or components it does not find?

python benchmarks/where_errors_are.py RUN...        nothing is trained: a pass over test rows and one over training rows

`own`: rows that their own client labels right (average accuracy). For FedSPM on data with known subgroups also
`component`: rows that it gives to the right subgroup, and `known`: rows it would label right if each told its subgroup.
A component of a client stands for the true one that most of the rows given to it have; "known" answers with those
that stand for the row's own alone, instead of the mixture of eq. 11.
"""

import sys
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedspm.algorithms.fedspm import FedSPM
from fedspm.data.part import Part
from fedspm.federated.evaluation import Model
from fedspm.mixture.model import log_likelihood, log_ratio
from fedspm.mixture.routing import class_probabilities, log_component_posterior
from fedspm.nn.sgd import chunks
from fedspm.runs.folder import Run


@torch.no_grad()
def asked(model: Model, i: int, part: Part) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c k"]]:
    """log P_i(c | x) and log P_ic(k | x) of a client's rows."""
    shared, private = model.shared, model.privates[i]
    posterior, likelihood = [], []
    for x in chunks(part.x):
        embedding = model.embed(x)
        ratio = log_ratio(shared["tilt.xi"][i], shared["tilt.gamma"][i], embedding["router"])
        posterior.append(log_component_posterior(private["mixing"].log(), ratio))
        likelihood.append(log_likelihood(private["head.weight"], private["head.bias"], embedding["predictor"]))
    return torch.cat(posterior), torch.cat(likelihood)


def stands_for(component: Int[Tensor, " n"], truth: Int[Tensor, " n"], components: int) -> Int[Tensor, " c"]:
    """The commonest true component of the rows of each; that of all rows for one that has none."""
    of = [truth[component == c] for c in range(components)]
    return torch.stack([(rows if len(rows) else truth).mode().values for rows in of])


@torch.no_grad()
def right(model: Model, i: int, part: Part) -> dict[str, int]:
    answers = [model.local(i, model.embed(x)).argmax(1) for x in chunks(part.x)]
    return {"own": int((torch.cat(answers) == part.y).sum())}


def right_by_components(model: Model, i: int, part: Part, truth: Tensor) -> dict[str, int]:
    posterior, likelihood = asked(model, i, part)
    component = posterior.argmax(1)
    meaning = stands_for(component, truth, posterior.shape[1])
    known = posterior.masked_fill(meaning != truth[:, None], -torch.inf)
    known = torch.where(known.isinf().all(1, keepdim=True), posterior, known)  # nothing stands for it
    own, told = (class_probabilities(each, likelihood).argmax(1) == part.y for each in (posterior, known))
    return {"own": int(own.sum()), "component": int((meaning[component] == truth).sum()), "known": int(told.sum())}


def main() -> None:
    torch.set_num_threads(1)
    for folder in sys.argv[1:]:
        run = Run.open(Path(folder))
        federation, model = run.federation(), run.model()
        truth = federation.truth if isinstance(model.algorithm, FedSPM) else None
        for kind in ("test", "train"):
            parts = getattr(federation, kind)
            if truth:
                given = zip(parts, getattr(truth, kind), strict=True)
                counts = [right_by_components(model, i, part, true) for i, (part, true) in enumerate(given)]
            else:
                counts = [right(model, i, part) for i, part in enumerate(parts)]
            rows = sum(map(len, parts))
            shares = {name: 100 * sum(count[name] for count in counts) / rows for name in counts[0]}
            print(f"{folder}: {kind} rows, {', '.join(f'{name} {share:.2f}' for name, share in shares.items())}")


if __name__ == "__main__":
    main()
