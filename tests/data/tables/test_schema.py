"""Tables become vectors by a schema that all clients agree on, and the vectors say what the table said."""

import datetime

import numpy as np
import pandas
import polars
import pytest
import torch

from fedspm import FederatedClassifier, Federation
from fedspm.base.errors import FedSPMError
from fedspm.data.tables.agree import agreed_schema, harmonised, summarise
from fedspm.data.tables.schema import SchemaColumn, TableSchema
from fedspm.data.tables.table import Table


def patients(n, seed=0, **changes):
    """A table as a hospital has it."""
    r = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {
            "patient_id": [f"P{number}" for number in r.choice(10**6, n, replace=False)],
            "age": r.normal(60, 10, n),
            "sex": r.choice(["M", "F"], n),
            "bmi": np.where(r.random(n) < 0.25, np.nan, r.normal(27, 4, n)),
            "smoker": r.random(n) < 0.3,
            "seen": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(r.integers(0, 900, n), "D"),
            "stage": pandas.Categorical(r.choice(["I", "II", "III"], n)),
            "ward": 7,
        }
    )
    frame["also age"] = frame["age"]
    return frame.assign(**changes), np.where((frame["age"] > 60) ^ (frame["sex"] == "M"), "ill", "well")


@pytest.fixture(scope="module")
def mixed():
    with pytest.warns(UserWarning, match="is left out"):
        return Federation.from_arrays({"north": patients(120), "south": patients(90, 1)}, test_fraction=0.3)


def agreed(*tables, min_count=10):
    named = {f"client {k}": Table.of(columns, "x") for k, columns in enumerate(tables)}
    return agreed_schema({name: summarise(table, min_count) for name, table in harmonised(named).items()})


def test_columns_that_tell_nothing_are_left_out_and_named(mixed):
    assert mixed.schema.dropped == {
        "patient_id": "identifies rows: its values hardly repeat",
        "ward": "is 7 in every row",
        "also age": "is the same as 'age' in every row",
    }
    assert mixed.columns == (
        *("age", "sex=F", "sex=M", "bmi", "bmi is missing", "smoker", "seen"),
        *("stage=I", "stage=II", "stage=III"),
    )


def test_every_value_is_where_a_slow_loop_puts_it(mixed):
    frame, _ = patients(40, 7)
    vectors = mixed.schema.encode(Table.of_frame(frame, "x"))
    for row, vector in zip(frame.to_dict("records"), vectors.tolist(), strict=True):
        days = (row["seen"].date() - datetime.date(1970, 1, 1)).days
        expected = [row["age"], row["sex"] == "F", row["sex"] == "M", row["bmi"], np.isnan(row["bmi"]), row["smoker"]]
        expected += [days, *(row["stage"] == stage for stage in ("I", "II", "III"))]
        np.testing.assert_array_equal(vector, np.array(expected, np.float32))


def test_vectors_give_the_table_back(mixed):
    x = mixed.train[0].x
    again = mixed.schema.encode(mixed.schema.decode(x))
    assert torch.equal(x.nan_to_num(-1), again.nan_to_num(-1))


def test_pandas_polars_and_columns_in_any_order_mean_the_same(mixed):
    frame, _ = patients(30, 5)
    vectors = mixed.schema.encode(Table.of_frame(frame, "x")).nan_to_num(-1)
    turned = frame[frame.columns[::-1]]
    cells = {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame}
    other = polars.DataFrame(cells | {"seen": frame["seen"].dt.to_pydatetime()})
    for same in (turned, other, frame.drop(columns=["ward", "patient_id"])):
        assert torch.equal(mixed.schema.encode(Table.of_frame(same, "x")).nan_to_num(-1), vectors)


def test_levels_that_few_rows_hold_are_not_told():
    north = {"drug": ["a"] * 30 + ["b"] * 12 + ["secret"] * 9 + ["other secret"] * 2}
    south = {"drug": ["a"] * 20 + ["secret"] * 5}
    told = {name: summarise(Table.of(columns, name), 10) for name, columns in (("n", north), ("s", south))}
    assert "secret" not in str(told)
    (column,) = agreed_schema(told).columns
    assert (column.levels, column.other) == (("a", "b"), True)
    x = agreed_schema(told).encode(Table.of({"drug": ["secret", "never seen", "b"]}, "x"))
    assert x.tolist() == [[0, 0, 1], [0, 0, 1], [0, 1, 0]]


def test_a_level_that_nobody_had_counts_as_missing_where_there_is_no_other():
    schema = agreed({"sex": ["m", "f"] * 20}, {"sex": ["m", "f"] * 20})
    assert schema.encode(Table.of({"sex": ["x", None, "m"]}, "x")).nan_to_num(-1).tolist() == [
        [-1, -1],
        [-1, -1],
        [0, 1],
    ]


def test_clients_with_few_rows_tell_kinds_only():
    (summary,) = summarise(Table.of({"sex": ["m", "f", "f"]}, "x"), 10)
    assert summary.model_dump(exclude_defaults=True) == {"name": "sex", "kind": "category", "few": True}


def test_a_client_with_few_rows_does_not_keep_what_tells_nothing():
    """A hospital with three rows can say neither that a column is constant nor that it identifies rows."""

    def rows(n):
        age = np.arange(n) % 37 + 20.0
        unit = {"unit": ["mg"] * n, "age": age, "also age": age}
        return unit | {"pid": [f"P{j}" for j in range(n)], "note": [f"no {j}" for j in range(n)]}

    for n in (3, 15):
        schema = agreed(rows(80), rows(n), rows(60))
        assert schema.names == ("age",)
        assert set(schema.dropped) == {"unit", "also age", "pid", "note"}


def test_numbers_that_repeat_at_one_client_identify_nobody():
    schema = agreed({"ward no": np.arange(50.0)}, {"ward no": np.arange(50.0) % 5})
    assert schema.names == ("ward no",)
    assert agreed({"USUBJID": np.arange(50.0), "age": np.arange(50.0)}).dropped.keys() == {"USUBJID"}


def test_numbers_here_and_words_there_are_a_category():
    schema = agreed({"stage": [1.0, 2.0] * 20}, {"stage": ["1", "two"] * 20})
    assert schema.columns == (SchemaColumn(name="stage", kind="category", levels=("1", "2", "two")),)


def test_what_has_no_missing_values_is_its_own_vector():
    x = np.random.default_rng(0).normal(size=(50, 3))
    frame = pandas.DataFrame(x, columns=list("abc"))
    y = np.arange(50) % 2
    named = Federation.from_arrays({"n": (frame, y), "s": (frame + 1, y)})
    plain = Federation.from_arrays({"n": (x, y), "s": (x + 1, y)})
    assert named.schema == TableSchema.of_numbers("abc")
    for one, other in zip(named.train, plain.train, strict=True):
        assert torch.equal(one.x, other.x)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"age": "sixty"}, "column 'age' holds 'sixty', which is not a number"),
        ({"seen": 3}, "column 'seen' is a number, the model was trained on a date"),
        ({"seen": "31/12/2020"}, "nobody knows whether the day or the month comes first"),
        ({"age": 1e60}, "column 'age' has no finite 32-bit number in row 1"),
    ],
)
def test_queries_that_do_not_fit_are_refused_by_name(mixed, change, sentence):
    frame, _ = patients(12, 3, **change)
    with pytest.raises(FedSPMError, match=sentence):
        mixed.schema.encode(Table.of_frame(frame, "x"))


def test_a_column_that_is_not_there_is_named(mixed):
    frame, _ = patients(12, 3)
    with pytest.raises(FedSPMError, match="there is no column 'bmi', on which the model was trained"):
        mixed.schema.encode(Table.of_frame(frame.drop(columns="bmi"), "x"))


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", " 2 ", "?", "NA"], "number", [1, 2, None, None]),
        (["1,5", "2"], "number", [1.5, 2]),
        (["TRUE", "false", ""], "boolean", [1, 0, None]),
        (["1970-01-03", "1970-01-02T12:00:00"], "date", [2, 1.5]),
        (["1970-01-02T12:00:00+02:00", "1970-01-02T12:00:00.5Z"], "date", [1 + 10 / 24, 1.5]),
        (["12:00", "06:00:00"], "number", [0.5, 0.25]),
        (["1970-01-03", "1970-01-02"], "date", [2, 1]),
        (["03.01.1970", None], "date", [2, None]),
        ([b"x", b"y"], "category", [0, 1]),
        ([datetime.date(1970, 1, 5)], "date", [4]),
        ([None, ""], "empty", [None, None]),
        (["1", ".", "--", "#N/A", " . ", "n.a."], "number", [1, None, None, None, None, None]),
        (["<0.3", "4", "≥ 60,5", "2"], "number", [0.3, 4, 60.5, 2]),
        (["<40", ">=40", "<40"], "category", [0, 1, 0]),
        (["5.3.20", "6.3.20", "x"], "category", [0, 1, 2]),
    ],
)
def test_kinds_of_columns(cells, kind, values):
    table = Table.of({"a": cells}, "x")
    assert table.columns[0].kind == kind
    assert [None if np.isnan(value) else value for value in table.values[:, 0].tolist()] == values


def test_what_a_column_of_pandas_may_hold():
    months = pandas.Series(pandas.period_range("1970-01", periods=3, freq="M"))
    assert Table.of({"month": months}, "x").values[:, 0].tolist() == [0, 31, 59]
    with pytest.raises(FedSPMError, match="column 'z' holds complex; give numbers, words"):
        Table.of({"z": pandas.Series([1j, 2j])}, "x")


def test_mistakes_among_dates_are_found_with_their_rows():
    with pytest.raises(FedSPMError, match="column 'seen' holds '2020-13-01' in row 12, where all others are dates"):
        Table.of({"seen": [f"2020-01-{day:02d}" for day in range(1, 12)] + ["2020-13-01"]}, "x")
    for text, unknown in (("03/04/2020", "whether the day or the month"), ("5.3.20", "in which century")):
        with pytest.raises(FedSPMError, match=f"column 'seen' holds dates like '{text}', of which .* {unknown}"):
            Table.of({"seen": [text] * 3}, "x")


def test_a_word_among_few_numbers_is_named_with_its_row(mixed):
    frame, _ = patients(4)
    few = frame.assign(age=["<50", ">80", "61,5", "60"])
    ages = mixed.schema.encode(Table.of_frame(few, "x"))[:, mixed.columns.index("age")]
    assert ages.tolist() == [50, 80, 61.5, 60]
    with pytest.raises(FedSPMError, match=r"column 'age' holds 'old', which is not a number \(row 3\)"):
        mixed.schema.encode(Table.of_frame(frame.assign(age=["40", "50", "old", "60"]), "x"))


def test_a_model_answers_frames_by_name_and_keeps_its_schema(mixed, tmp_path):
    model = FederatedClassifier(components=2, rounds=3, settings={"em.hold": 2}).fit(mixed)
    frame, y = patients(60, 9)
    expected = model.predict_proba(frame)
    np.testing.assert_array_equal(model.predict_proba(frame[frame.columns[::-1]]), expected)
    model.save(tmp_path / "model")
    again = FederatedClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(frame), expected)
    assert again.schema_ == mixed.schema
    with pytest.raises(FedSPMError, match="no numbers; give rows with names of columns: age, sex, bmi"):
        model.predict(frame.to_numpy())
    new = Federation.from_arrays({"north": (frame, y), "south": (frame, y)}, test_fraction=0.5, schema=model.schema_)
    assert model.evaluate(new)["clients"].keys() == {"north", "south"}
