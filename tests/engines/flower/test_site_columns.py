"""Columns by name across sites: in another order they are put right, other ones are refused before training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pandas import DataFrame

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import DamagedFile, FedSPMError, TooFewSites
from fedspm.data.tables.schema import TableSchema
from fedspm.data.tables.table import Column
from fedspm.engines.flower.handshake import agreed_columns, introduce
from fedspm.engines.flower.server import FlowerEngine
from fedspm.engines.flower.site import Site
from fedspm.engines.flower.site_data import SiteRows, load_rows, save_rows, write_rows
from fedspm.runs.manifest import site_manifest
from fedspm.training.loop import begin, one_round
from postbox import algorithm_of, loop_engine
from small import small_settings

COLUMNS = ("age", "weight", "height", "pulse", "sugar", "sleep")


@pytest.fixture
def named(vectors):
    return replace(vectors, schema=TableSchema.of_numbers(COLUMNS))


def with_columns(config, columns, order=None):
    """Rewrites a site's rows: their columns in another order, or under other names."""
    rows = load_rows(config.rows)
    if order is not None:
        parts = (replace(part, x=part.x[:, order].contiguous()) for part in (rows.train, rows.test))
        rows = replace(rows, **dict(zip(("train", "test"), parts, strict=True)))
    columns = columns and tuple(Column(name, "number") for name in columns)
    write_rows(type(config.state)(config.rows), replace(rows, columns=columns))


def network(named, folder):
    return loop_engine(named, algorithm_of(FedSPM, small_settings(), named), folder)


def trained(engine):
    across = FlowerEngine(engine.post, engine.algorithm, engine.classes, "run1", engine.nodes, print)
    shared = begin(engine.algorithm, across)
    return one_round(engine.algorithm, across, shared, 0), across


def columns_of(engine):
    return agreed_columns(dict(introduce(engine.post, engine.post.online(), 5)), engine.algorithm.task.names)


def rejoined(engine):
    engine.grid.sites = {node: Site(site.config, "") for node, site in engine.grid.sites.items()}


def test_columns_in_another_order_give_the_same_bits(named, tmp_path):
    torch.set_num_threads(1)
    right, turned = (network(named, tmp_path / name) for name in ("right", "turned"))
    for node in (11, 12):
        with_columns(turned.grid.sites[node].config, COLUMNS[::-1], [5, 4, 3, 2, 1, 0])
    rejoined(turned)
    assert columns_of(right) == columns_of(turned) == named.schema
    (expected, one), (found, across) = (trained(engine) for engine in (right, turned))
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
    right_at_sites = [{site: int(each["right"]) for site, each in x.count(expected).items()} for x in (one, across)]
    assert right_at_sites[0] == right_at_sites[1]  # test rows too
    about = site_manifest(across.algorithm, across.classes, False)
    assert [column["name"] for column in about["table"]["columns"]] == list(COLUMNS)


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (
            (*COLUMNS[:5], "steps"),
            "client 'south' has other columns than client 'north': its rows lack sleep and have also",
        ),
        (None, "rows of site 'north' have names of columns and those of site 'south' have none"),
    ],
)
def test_other_columns_are_refused_by_name_before_training(named, tmp_path, columns, why):
    engine = network(named, tmp_path)
    with_columns(engine.grid.sites[11].config, columns)
    rejoined(engine)
    with pytest.raises(FedSPMError, match=why):
        columns_of(engine)
    with pytest.raises(
        TooFewSites, match=r"site 'south'.*(no column 'sleep'|the run has the columns age, .*, and this site none)"
    ):
        trained(engine)  # whatever the server thinks of it


def test_rows_of_a_table_keep_the_names_and_the_test_rows_follow(tmp_path):
    x, y = np.arange(24.0).reshape(4, 6), np.arange(4) % 2
    frame = DataFrame(x, columns=COLUMNS)
    save_rows(tmp_path / "rows.safetensors", frame, y, frame[[*COLUMNS[::-1]]], y)
    rows = load_rows(str(tmp_path / "rows.safetensors"))
    assert tuple(column.name for column in rows.columns) == COLUMNS
    assert torch.equal(rows.train.x, rows.test.x)
    train, test = rows.encoded(rows.classes, TableSchema.of_numbers(COLUMNS[::-1]))
    assert torch.equal(train.x, test.x)
    assert torch.equal(train.x, rows.train.x.flip(1).float())
    save_rows(tmp_path / "plain.safetensors", x, y)
    assert load_rows(str(tmp_path / "plain.safetensors")).columns is None


def test_names_that_do_not_fit_the_rows_are_refused(tmp_path):
    x, y = np.zeros((4, 3)), np.arange(4) % 2
    with pytest.raises(FedSPMError, match="two columns are called 'age'"):
        SiteRows.of(DataFrame(x, columns=("age", "age", "sleep")), y)
    write_rows(tmp_path / "rows.safetensors", replace(SiteRows.of(x, y), columns=(Column("age", "number"),)))
    with pytest.raises(DamagedFile, match="names 1 columns"):
        load_rows(str(tmp_path / "rows.safetensors"))
