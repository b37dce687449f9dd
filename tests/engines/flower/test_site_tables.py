"""Tables of mixed columns give the same bits in process and across sites, which tell only what many rows have."""

import numpy as np
import pytest
import torch
from pandas import DataFrame

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from fedspm import Federation
from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import Refused
from fedspm.engines.flower.handshake import agreed_task, introduce
from fedspm.engines.flower.site import Site
from fedspm.engines.flower.site_data import load_rows, rows_of, save_rows
from fedspm.engines.local import LocalEngine
from fedspm.training.loop import begin, one_round
from postbox import algorithm_of, loop_engine
from small import small_settings


def ward(n, seed):
    r = np.random.default_rng(seed)
    age, sex = r.normal(60, 10, n), r.choice(["M", "F"], n)
    drug = np.where(np.arange(n) < 5, "penicillamine", r.choice(["a", "b", "c"], n))
    sugar = np.where(r.random(n) < 0.3, np.nan, r.normal(5, 1, n))
    frame = DataFrame({"age": age, "sex": sex, "sugar": sugar, "drug": drug, "smoker": r.random(n) < 0.4})
    return frame, np.where((age > 60) ^ (sex == "M"), "ill", "well")


@pytest.fixture
def wards():
    return {name: ward(60, seed) for seed, name in enumerate(("north", "south", "west"))}


def test_the_same_bits_as_in_process(wards, tmp_path):
    torch.set_num_threads(1)
    federation = Federation.from_arrays(wards, test_fraction=0.2)
    algorithm = algorithm_of(FedSPM, small_settings(), federation)
    across = loop_engine(federation, algorithm, tmp_path)
    with LocalEngine(federation, seed=algorithm.settings.seed, workers=1, device="cpu") as here:
        states = []
        for engine in (here, across):
            shared = begin(algorithm, engine)
            states.append(one_round(algorithm, engine, shared, 0))
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
        assert torch.isfinite(value).all(), name


def test_sites_agree_on_what_one_machine_agrees_on(wards, tmp_path):
    federation = Federation.from_arrays(wards)
    engine = loop_engine(federation, algorithm_of(FedSPM, small_settings(), federation), tmp_path / "sites")
    for node, site in engine.grid.sites.items():
        save_rows(site.config.rows, *wards[site.config.name])
        engine.grid.sites[node] = Site(site.config, "")
    sites = dict(introduce(engine.post, engine.post.online(), 5))
    assert "penicillamine" not in str(sites)
    task, _ = agreed_task(sites, federation.names)
    assert (task.schema, task.shape) == (federation.schema, federation.shape)
    train, _ = engine.grid.sites[10].rows.encoded(federation.classes, task.schema)
    assert torch.equal(train.x.nan_to_num(-1), federation.train[0].x.nan_to_num(-1))


def test_a_made_up_schema_does_not_turn_numbers_into_levels(wards, tmp_path):
    """With a 0 or 1 for every value, the products of features that a start asks for would tell single rows."""
    federation = Federation.from_arrays(wards)
    own = federation.schema
    ages = tuple(str(age) for age in wards["north"][0]["age"])
    first = own.columns[0].model_copy(update={"kind": "category", "levels": ages})
    made_up = own.model_copy(update={"columns": (first, *own.columns[1:])})
    rows = rows_of(federation, 0)
    assert own.columns[0].name == "age"
    with pytest.raises(Refused, match="takes the column 'age' for words, and this site has a number there"):
        rows.encoded(federation.classes, made_up)
    rows.encoded(federation.classes, own)


def test_rows_of_a_table_survive_the_disk(wards, tmp_path):
    frame, y = wards["north"]
    save_rows(tmp_path / "rows.safetensors", frame, y, frame[:3][frame.columns[::-1]], y[:3])
    rows = load_rows(str(tmp_path / "rows.safetensors"))
    assert [(column.name, column.kind) for column in rows.columns] == [
        ("age", "number"),
        ("sex", "category"),
        ("sugar", "number"),
        ("drug", "category"),
        ("smoker", "boolean"),
    ]
    assert torch.equal(rows.train.x[:3].nan_to_num(-1), rows.test.x.nan_to_num(-1))


def test_a_client_on_one_machine_has_the_rows_that_its_site_would_have(wards):
    federation = Federation.from_arrays(wards)
    train, _ = rows_of(federation, 1).encoded(federation.classes, federation.schema)
    assert torch.equal(train.x.nan_to_num(-1), federation.train[1].x.nan_to_num(-1))
