"""The four hospitals ship with the package, and train with one class nearly absent in one of them."""

import numpy as np
import pytest

from fedspm.base.errors import DamagedFile
from fedspm.data.catalog.heart import HEART, draft
from fedspm.runs.check_data import check_data
from fedspm.runs.config import resolve


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSPM_DATA", raising=False)


def test_it_is_the_published_data():
    found = draft(HEART.load())
    assert {name: len(y) for name, (_, y) in found.train.items()} == {
        "cleveland": 303,
        "hungarian": 294,
        "switzerland": 123,
        "va": 200,
    }
    assert sum((y == "ill").sum() for _, y in found.train.values()) == 509
    table, _ = found.train["switzerland"]
    assert np.isnan(table.values[:, table.names.index("chol")]).all()  # all are 0 in the file


def test_a_seed_holds_out_other_rows_and_the_columns_stay():
    one, other = (resolve({"data": {"name": "heart-disease"}, "seed": seed}).federation() for seed in (0, 1))
    assert sum(one.counts) == 644
    assert one.schema == other.schema
    assert one.fingerprint != other.fingerprint
    assert {"cp=1", "cp=4", "thal is missing", "chol is missing"} <= set(one.columns)


def test_check_finds_nothing_that_stops_a_training():
    findings = check_data(resolve({"data": {"name": "heart-disease"}}))
    assert findings.problems == []
    assert {"chol", "ca"} <= {each.column for each in findings.differences}


def test_a_damaged_file_is_named(tmp_path):
    for file in HEART.shipped.glob("*.data"):
        (tmp_path / file.name).write_text(file.read_text().replace("63.0,1.0", "63.0;1.0", 1))
    with pytest.raises(DamagedFile, match=r"processed.cleveland.data, line 1"):
        HEART.load(tmp_path)
