"""The audit of a run finds what is there, and says nothing of what is not."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu
from typer.testing import CliRunner

from fedspm.audit.membership import told_apart
from fedspm.audit.run_audit import audit_run, sentences
from fedspm.cli.app import app
from fedspm.nn.row_inversion import layers_on_rows, rows_read
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.training.loop import train


def test_auc_is_that_of_mann_and_whitney():
    draw = np.random.default_rng(0)
    members, others = draw.normal(0.5, 1, 300), draw.normal(0, 1, 200).round(1)
    told = told_apart(members, others)
    assert told.auc == pytest.approx(mannwhitneyu(members, others).statistic / (300 * 200))
    assert told.auc_interval[0] < told.auc < told.auc_interval[1]
    assert told.found == np.mean(members > np.sort(others)[197])  # two of two hundred are above
    assert told_apart(others, others).auc == 0.5


@pytest.mark.parametrize("seed", range(5))
def test_only_rows_that_a_unit_or_a_pair_shows_are_read(seed):
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(80, 7, generator=draw) * 3 + 5
    share = torch.randn(40, 80, generator=draw) * (torch.rand(40, 80, generator=draw) < 0.3)
    assert not len(rows_read(share @ rows, share.sum(1), rows))
    share[4] = 0
    share[4, 11] = 1e-3  # one row alone has moved unit 4
    share[9] = share[21]
    share[9, 33] += 0.5  # units 9 and 21 differ by a row
    slow = {  # the same by a loop over units and pairs
        j
        for u in range(41)
        for v in range(u)
        for j in range(80)
        if (bias := share[v].sum() - (share[u].sum() if u < 40 else 0)) != 0
        and torch.dist((share[v] - (share[u] if u < 40 else 0)) @ rows / bias, rows[j]) < 0.01
    }
    assert slow == {11, 33}
    assert rows_read(share @ rows, share.sum(1), rows).tolist() == [11, 33]


def test_layers_that_see_rows_are_found_by_their_shape():
    shared = {"a.weight": torch.zeros(3, 6), "a.bias": torch.zeros(3), "b.weight": torch.zeros(3, 3)}
    shared |= {"b.bias": torch.zeros(3), "c.weight": torch.zeros(2, 6)}
    assert layers_on_rows(shared, 6) == [("a.weight", "a.bias")]


@pytest.fixture(scope="module")
def run(vectors, tmp_path_factory):
    from fedspm.algorithms import build_algorithm
    from fedspm.federated.task import Task
    from fedspm.runs.manifest import manifest

    path = tmp_path_factory.mktemp("audit")
    table = path / "rows.csv"
    lines = ["client,a,b,c,d,e,f,y"]
    for name, part in zip(vectors.names, vectors.train, strict=True):
        for x, y in zip(part.x.tolist(), part.y.tolist(), strict=True):
            lines.append(f"{name},{','.join(f'{value:.6g}' for value in x)},{vectors.classes[y]}")
    table.write_text("\n".join(lines))
    block = {"encoder": "mlp", "dimension": 4, "batch_size": 8, "steps": 1, "momentum": 0.0}
    data = {"name": str(table), "client_column": "client", "label_column": "y"}
    config = resolve({"algorithm": "fedavg", "rounds": 2, "workers": 1, "data": data, "predictor": block})
    federation = config.federation()
    algorithm = build_algorithm(config, Task.of_federation(federation))
    run = Run.create(path / "run", config, manifest(federation, algorithm, "test"))
    train(config, algorithm, federation, run=run)
    return run


def test_small_batches_show_rows_and_noise_hides_them(run):
    found = audit_run(run, noise=1.0)
    clear, noisy = (each for each in found.rounds if each.round == "first")
    assert clear.rebuilt.rows > 5
    assert noisy.noise == 1.0
    assert noisy.rebuilt.rows == 0
    assert clear.rebuilt.layers == noisy.rebuilt.layers == 3
    assert clear.update.auc > 0.5
    assert abs(noisy.update.auc - 0.5) < 0.1
    assert set(found.model) == {"loss", "likelihood ratio"}
    assert found.not_tried == []
    first, second, third = sentences(found.to_dict())
    assert f"reads {max(each.rebuilt.rows for each in found.rounds):,} of" in first
    assert "AUC" in second
    assert "only ε bounds every one" in third


def test_the_command_prints_a_table_or_json(run):
    shown = CliRunner().invoke(app, ["audit", str(run.path), "--noise", "2"])
    assert shown.exit_code == 0
    assert "first round" in shown.output
    found = json.loads(CliRunner().invoke(app, ["audit", str(run.path), "--json"]).stdout)
    assert {each["noise"] for each in found["rounds"]} == {0.0, 1.0}
