"""One's own data: every form gives the federation that was meant, and hostile input gets a sentence."""

import csv
import gzip
import shlex
import sys

import polars
import pytest

from fedspm import Federation
from fedspm.base.errors import FedSPMError
from fedspm.base.layers import parse_assignments
from fedspm.data.readers.detect import read_path, read_queries_table
from fedspm.data.readers.draft import ReadOptions, as_kind, natural
from fedspm.runs.config import resolve
from own_data import HEADER, ROWS, problems, write_csv

# -- tables in parts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"client_column": "site"}])
def test_tables_with_a_client_column_are_parts_of_one(tmp_path, how):
    for i in range(3):
        write_csv(tmp_path / f"data-0000{i}-of-00003.csv", ROWS[i::3])
    draft = read_path(tmp_path, ReadOptions(**how))
    assert draft.form == "parts of a table with a client column"
    assert {name: len(y) for name, (_, y) in draft.train.items()} == {"nord": 10, "Süd 2": 8, "Süd 10": 12}
    assert draft.train["nord"][0].names == ("age", "pressure")


def test_a_client_column_that_was_named_is_missed_where_a_part_has_none(tmp_path):
    write_csv(tmp_path / "a.csv", ROWS)
    write_csv(tmp_path / "b.csv", [row[1:] for row in ROWS], HEADER[1:])
    assert "has no column 'site'" in problems(tmp_path, client_column="site")[0]


def test_a_client_column_that_only_some_tables_have_is_not_thrown_away(tmp_path):
    write_csv(tmp_path / "a.csv", ROWS)
    write_csv(tmp_path / "b.csv", [row[1:] for row in ROWS], HEADER[1:])
    (problem,) = problems(tmp_path)
    assert "a.csv has a client column, 'site', and " in problem
    assert problem.endswith("b.csv has none; give every table one, or leave it out: --set data.ignore=site")
    assert problems(tmp_path, ignore=("site",)) == []


@pytest.mark.parametrize("name", ["Unnamed: 0", "id, visit", 'the "id"', "it's"])
def test_what_is_said_of_a_column_can_be_typed(tmp_path, name):
    rows = [(*row, j if j else "word") for j, row in enumerate(ROWS)]
    write_csv(tmp_path / "a.csv", rows, (*HEADER, name))
    (problem,) = problems(tmp_path)
    for before, after in (("are names: ", "; to leave the column"), ("the column out: ", "; to leave such rows")):
        _, typed = shlex.split(problem.partition(before)[2].partition(after)[0])
        reading = resolve({"data": {"name": str(tmp_path / "a.csv")}}, parse_assignments([typed])).data.reading
        assert problems(tmp_path, ignore=reading.ignore, categories=reading.categories) == []


def test_tables_that_ignore_their_client_column_are_a_client_each(tmp_path):
    for i in range(2):
        write_csv(tmp_path / f"{'ab'[i]}.csv", ROWS[i::2])
    assert list(read_path(tmp_path, ReadOptions(ignore=("site",))).train) == ["a", "b"]


# -- tables ----------------------------------------------------------------------------------------------------------


def test_a_table_of_vectors(tmp_path):
    federation = Federation.from_table(write_csv(tmp_path / "t.csv", ROWS), test_fraction=None)
    assert federation.names == ("nord", "Süd 2", "Süd 10")
    assert federation.columns == ("age", "pressure")
    assert federation.classes.tolist() == ["ill", "well"]
    assert federation.counts == (10, 8, 12)
    assert federation.train[2].x[:2].tolist() == [[50, 80.25], [51, 81.25]]


def test_the_order_of_rows_of_different_clients_does_not_matter(tmp_path):
    one = Federation.from_table(write_csv(tmp_path / "a.csv", ROWS))
    other = Federation.from_table(write_csv(tmp_path / "b.csv", sorted(ROWS, key=lambda row: row[0], reverse=True)))
    assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize(
    "kind",
    ["bom", "semicolons", "tabs", "bars", "decimal commas", "quoted", "gzip", "index", "parquet", "a table a client"],
)
@pytest.mark.filterwarnings("ignore:column '' is left out")
def test_the_same_table_in_many_spellings(tmp_path, kind):
    plain = Federation.from_table(write_csv(tmp_path / "plain.csv", ROWS))
    path = tmp_path / "other" / "table.csv"
    path.parent.mkdir()
    if kind == "bom":
        write_csv(path, ROWS, encoding="utf-8-sig")
    elif kind == "semicolons":
        write_csv(path, ROWS, delimiter=";")
    elif kind == "tabs":
        path = write_csv(path.with_suffix(".tsv"), ROWS, delimiter="\t")
    elif kind == "decimal commas":
        write_csv(path, [[str(cell).replace(".", ",") for cell in row] for row in ROWS], delimiter=";")
    elif kind == "bars":
        write_csv(path, ROWS, delimiter="|")
    elif kind == "index":
        write_csv(path, [(j, *row) for j, row in enumerate(ROWS)], ["", *HEADER])
    elif kind == "gzip":
        path = path.with_suffix(".csv.gz")
        path.write_bytes(gzip.compress(write_csv(tmp_path / "again.csv", ROWS).read_bytes()))
    elif kind == "quoted":
        write_csv(path, ROWS, quoting=csv.QUOTE_ALL)
    elif kind == "parquet":
        path = path.with_suffix(".parquet")
        polars.DataFrame(ROWS, schema=list(HEADER), orient="row").write_parquet(path)
    else:
        for name in ("nord", "Süd 10", "Süd 2"):
            write_csv(path.parent / f"{name}.csv", [row[1:] for row in ROWS if row[0] == name], HEADER[1:])
        path = path.parent
    federation = Federation.from_folder(path) if path.is_dir() else Federation.from_table(path)
    assert federation.fingerprint == plain.fingerprint
    assert federation.columns == plain.columns


@pytest.mark.parametrize(
    ("header", "change", "how", "sentence"),
    [
        (["site", "age", "age", "target"], None, {}, "2 columns are called 'age'"),
        (["place", "age", "pressure", "target"], None, {}, "no column is called client .* name the client column"),
        (["site", "age", "pressure", "outcome"], None, {}, "name the label column: --set data.label_column=NAME"),
        (HEADER, None, {"client_column": "sites"}, "no client column 'sites'; did you mean 'site'"),
        (HEADER, None, {"ignore": ("agee",)}, "no column 'agee' to ignore; did you mean 'age'"),
        (["site", "center", "pressure", "target"], None, {}, "'site' and 'center' may both be the client"),
        (HEADER, (3, 1, "inf"), {}, "column 'age' has no finite 32-bit number in row 4"),
        (HEADER, (17, 1, "1e300"), {}, "column 'age' has no finite 32-bit number in row 18"),
        (HEADER, (3, 1, "old"), {}, "column 'age' holds 'old' in row 4, where all others are numbers"),
        (HEADER, (3, 3, "NA"), {}, "column 'target': row 4 has no label"),
        (HEADER, (3, 3, " "), {}, "column 'target': row 4 has no label"),
        (HEADER, (3, 3, "0.75"), {}, "0.75 is not a label"),
        (HEADER, (3, 0, ""), {}, "column 'site': row 4 has no client"),
        (HEADER, (3, 0, "alone"), {}, "client 'alone' has only one row"),
        (["site", "split", "pressure", "target"], None, {}, "column 'split': found '30', expected train or test"),
        (HEADER, None, {"ignore": ("age", "pressure")}, "no columns left that could be features"),
    ],
)
def test_what_is_wrong_with_a_table(tmp_path, header, change, how, sentence):
    rows = [list(row) for row in ROWS]
    if change:
        rows[change[0]][change[1]] = change[2]
    with pytest.raises(FedSPMError, match=sentence) as caught:
        Federation.from_table(write_csv(tmp_path / "t.csv", rows, header), **how)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"site,target,age\n", "has no rows"),
        (b"site,target,age\nnorth,1\n", "row 1 has 2 cells, the header names 3 columns"),
        ("site,target,age\nS\xfcd,1,2\n".encode("latin-1"), "not UTF-8"),
        (b"site,target,age\n" + b"north,1,2\n" * 2000 + b"S\xfcd,1,2\n", "not UTF-8"),  # beyond what is read at first
        (b'site,target,age\n"north,1,2\n', "not a CSV file"),
        (b"site,target,age\na,x,1\na,x,2\nb,x,3\nb,x,4\n", "one class only"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_broken_tables(tmp_path, content, sentence):
    path = tmp_path / "broken.csv"
    path.write_bytes(content)
    with pytest.raises(FedSPMError, match=sentence):
        Federation.from_table(path, test_fraction=None)


def test_dates_that_a_csv_leaves_open_are_refused(tmp_path):
    """polars would take 03/04/2020 for April without a word."""
    rows = [[row[0], "03/04/2020", *row[2:]] for row in ROWS]
    with pytest.raises(FedSPMError, match="column 'seen' holds dates like '03/04/2020', of which nobody knows whether"):
        Federation.from_table(write_csv(tmp_path / "t.csv", rows, ["site", "seen", *HEADER[2:]]))


def test_parquet_is_checked(tmp_path):
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 and nothing")
    with pytest.raises(FedSPMError, match=r"t\.parquet is not a whole parquet file"):
        Federation.from_table(path)


def test_excel_needs_fastexcel(tmp_path, monkeypatch):
    path = tmp_path / "t.xlsx"
    path.write_bytes(b"PK and nothing")
    monkeypatch.setitem(sys.modules, "fastexcel", None)
    with pytest.raises(FedSPMError, match=r"pip install 'fedspm\[excel\]'"):
        Federation.from_table(path)


# -- the rest --------------------------------------------------------------------------------------------------------


def test_names_are_ordered_as_people_count():
    assert sorted(["c10", "c2", "b", "10", "9"], key=natural) == ["9", "10", "b", "c2", "c10"]


def test_labels_keep_what_matters():
    assert as_kind(["1", "2.0", "-3"]).tolist() == [1, 2, -3]
    assert as_kind(["007", "1"]).tolist() == ["007", "1"]
    assert as_kind(["1", "one"]).tolist() == ["1", "one"]


def test_a_path_is_a_name_in_the_configuration(tmp_path, monkeypatch):
    write_csv(tmp_path / "wards.csv", ROWS)
    monkeypatch.chdir(tmp_path)
    settings = resolve({"data": {"name": "wards.csv", "ignore": "age"}})
    assert settings.data.path == tmp_path / "wards.csv"
    assert settings.data.title == "wards"
    assert settings.federation().columns == ("pressure",)
    assert "clients" not in settings.to_dict()["data"]
    import tomllib

    monkeypatch.chdir("/")
    again = resolve(tomllib.loads(settings.to_toml()))
    assert again == settings
    assert again.federation().fingerprint == settings.federation().fingerprint
    with pytest.raises(FedSPMError, match="there is no folder or file"):
        resolve({"data": {"name": "./nothing"}}).federation()
    with pytest.raises(FedSPMError, match=r"data.clients is for images .* your own data is divided already"):
        resolve({"data": {"name": str(tmp_path), "clients": 5}}).federation()


def test_a_folder_cannot_take_the_name_of_a_data_set(tmp_path, monkeypatch):
    for name in ("fashion-sample", "arrays"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("fashion-sample", "arrays"):
        assert resolve({"data": {"name": name}}).data.path is None


def test_every_bad_row_is_listed_with_its_number_in_the_file(tmp_path):
    lines = [",".join(map(str, row)) for row in ROWS]
    lines[3] += ",one too many"
    lines[6] = "nord"
    lines[8] = lines[8].replace("38", "3x")
    lines[9] = lines[9].rpartition(",")[0] + ","
    (tmp_path / "t.csv").write_text("\n".join([",".join(HEADER), *lines]), encoding="utf-8")
    found = problems(tmp_path / "t.csv")
    wanted = ["row 4 has 5 cells", "row 7 has 1 cells", "row 10 has no label", "column 'age' holds '3x' in row 9,"]
    assert len(found) == 4
    for sentence, words in zip(found, wanted, strict=True):
        assert words in sentence
        assert "--set data.skip=true" in sentence
    draft = read_path(tmp_path / "t.csv", ReadOptions(skip=True))
    assert len(draft.train["nord"][1]) == 6
    assert sum(draft.skipped.values()) == 4
    with pytest.raises(FedSPMError, match=r"row 4 has 5 cells, the header names 4 columns$"):
        read_queries_table(tmp_path / "t.csv", None)


@pytest.mark.parametrize("has", ["first", "second"])
def test_a_column_that_one_table_lacks_is_refused_wherever_it_is(tmp_path, has):
    """Not left out because the hospital that comes first in the alphabet lacks it."""
    lacks = {"first": "second", "second": "first"}[has]
    write_csv(tmp_path / f"{has}.csv", [[j, *row[1:]] for j, row in enumerate(ROWS)], ["", *HEADER[1:]])
    write_csv(tmp_path / f"{lacks}.csv", [row[2:] for row in ROWS], HEADER[2:])
    (problem,) = problems(tmp_path)
    assert f"{lacks}.csv has no column 'age', which {tmp_path / has}.csv has; add it" in problem
    assert problem.endswith("or leave it out everywhere: --set data.ignore=age")
    assert problems(tmp_path, ignore=("age",)) == []
    assert "no column 'agee' to ignore" in problems(tmp_path, ignore=("age", "agee"))[0]


def test_separators_at_the_end_of_every_line_are_no_columns(tmp_path):
    path = write_csv(tmp_path / "t.csv", [[*row, "", ""] for row in ROWS], [*HEADER, "", ""], delimiter=";")
    assert problems(path) == []
    path = write_csv(tmp_path / "t.csv", [[*row, j, j] for j, row in enumerate(ROWS)], [*HEADER, "", ""])
    with pytest.raises(FedSPMError, match="2 columns are called ''"):
        read_path(path, ReadOptions())
