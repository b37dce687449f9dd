"""Spellings, units and stand-ins for missing values that differ between clients are found."""

import numpy as np

from fedspm.data.tables.compare import differences, mostly_numbers
from fedspm.data.tables.table import Table


def found(column, **clients):
    tables = {name: Table.of({column: cells}, name) for name, cells in clients.items()}
    return [(each.what, each.clients) for each in differences(tables)]


def test_spellings():
    assert found("sex", a=["m", "f"] * 9, b=["M", "f"] * 9) == [("spelt in several ways", {"a": "m", "b": "M"})]
    assert found("sex", a=["m", "f"] * 9, b=["f", "m"] * 9) == []
    ((what, clients),) = found("sex", a=["m", "f"] * 9, b=["1", "two"] * 9)
    assert (what, clients) == ("no level in common", {"a": "f, m", "b": "1, two"})
    ((what, clients),) = found("sex", a=["m", "f"] * 9, b=["1", "two"] * 9, c=["m"] * 9)
    assert (what, clients) == ("no level of b elsewhere", {"a": "f, m", "b": "1, two", "c": "m"})


def test_what_identifies_rows_is_not_compared():
    names = [f"P{number}" for number in range(120)]
    assert found("patient", a=names[:60], b=names[60:]) == []
    assert found("rownames", a=range(1, 60), b=range(1000, 1100)) == []
    ((_, clients),) = found("town", a=["Saint-Germain-en-Laye", "x"] * 9, b=["y"] * 9)
    assert clients["a"] == "Saint-Germain-e…, x"


def test_zeros_for_missing_values():
    r = np.random.default_rng(0)
    ((what, clients),) = found("chol", a=r.integers(150, 400, 90), b=[0] * 40, c=[0, *r.integers(150, 400, 99)])
    assert what == "is 0, far from all others"
    assert clients == {"a": "0%", "b": "100%", "c": "1%"}
    assert found("vessels", a=r.integers(0, 4, 90), b=r.integers(0, 4, 90)) == []
    assert found("oldpeak", a=np.abs(r.normal(size=90)).round(1), b=[0.0] * 40) == []


def test_units():
    r = np.random.default_rng(0)
    ((what, clients),) = found("height", a=r.normal(170, 9, 60), b=r.normal(1.7, 0.1, 60), c=r.normal(168, 9, 60))
    assert what == "medians differ: another unit?"
    assert set(clients) == {"a", "b", "c"}
    assert found("height", a=r.normal(170, 9, 60), b=r.normal(150, 9, 60)) == []


def test_what_only_some_measure():
    assert found("ca", a=[1.0] * 30, b=[None] * 30) == [("missing", {"a": "0%", "b": "100%"})]


def test_measurements_that_words_make_a_category():
    """`<0.3 mg` in a fifth of the rows costs the numbers of all others, which must be said."""
    crp = [f"{number / 10}" for number in range(1, 61)]
    tables = {"a": Table.of({"crp": [*crp, *["low"] * 15], "stage": ["1", "2", "x"] * 25}, "a")}
    (sentence,) = mostly_numbers(tables)
    assert sentence.startswith("column 'crp' is a category because 15 of its 75 values are no numbers, 'low'")
    assert not [*mostly_numbers(tables, chosen=["crp"])]
