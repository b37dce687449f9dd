"""One's own data: every form gives the federation that was meant, and hostile input gets a sentence."""

import csv
import shlex
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from fedspm import Federation
from fedspm.config import resolve
from fedspm.data.draft import Reading, as_kind, checked_size, natural
from fedspm.data.own import read_own
from fedspm.errors import FedSPMError
from fedspm.nested import parse_assignments

HEADER = ["site", "age", "pressure", "target"]
ROWS = [["nord", 30 + j, 100.5 - j, "ill" if j % 2 else "well"] for j in range(10)]
ROWS += [["Süd 10", 50 + j, 80.25 + j, "ill" if j % 3 else "well"] for j in range(12)]
ROWS += [["Süd 2", j, 5.0 * j, "well" if j % 4 else "ill"] for j in range(8)]


def write_csv(path, rows, header=HEADER, **options):
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        csv.writer(file, **options).writerows([header, *rows])
    return path


def picture(path, shade=100, size=(10, 12), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade).save(path)
    return path


def folder_of_images(path, split=""):
    for i, client in enumerate(("north", "süd")):
        for k, label in enumerate(("cat", "dog")):
            for j in range(4 + 2 * i):
                picture(path / client / split / label / f"{j}.png", 40 * k + 10 * i + j)
    return path


def problems(path, **how):
    return read_own(path, Reading(**how)).problems


# -- tables in parts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"client_column": "site"}])
def test_tables_with_a_client_column_are_parts_of_one(tmp_path, how):
    for i in range(3):
        write_csv(tmp_path / f"data-0000{i}-of-00003.csv", ROWS[i::3])
    draft = read_own(tmp_path, Reading(**how))
    assert draft.form == "parts of a table with a client column"
    assert {name: len(y) for name, (_, y) in draft.train.items()} == {"nord": 10, "Süd 2": 8, "Süd 10": 12}
    assert draft.columns == ("age", "pressure")


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
    write_csv(tmp_path / "a.csv", [(*row, "word") for row in ROWS], (*HEADER, name))
    (problem,) = problems(tmp_path)
    _, typed = shlex.split(problem[problem.index("--set") :])
    ignored = resolve({"data": {"name": str(tmp_path / "a.csv")}}, parse_assignments([typed])).data.ignore
    assert problems(tmp_path, ignore=ignored) == []


def test_tables_that_ignore_their_client_column_are_a_client_each(tmp_path):
    for i in range(2):
        write_csv(tmp_path / f"{'ab'[i]}.csv", ROWS[i::2])
    assert list(read_own(tmp_path, Reading(ignore=("site",))).train) == ["a", "b"]


# -- images ----------------------------------------------------------------------------------------------------------


def test_a_folder_a_client_with_a_folder_a_class(tmp_path):
    federation = Federation.from_folder(folder_of_images(tmp_path), test_fraction=0.25)
    assert federation.names == ("north", "süd")
    assert federation.classes.tolist() == ["cat", "dog"]
    assert [len(part) for part in federation.train] == [6, 9]
    assert [len(part) for part in federation.test] == [2, 3]
    assert federation.shape == (3, 12, 10)  # all alike and small: as they are
    cats = federation.train[1].x[federation.train[1].y == 0]
    assert set((cats[:, 0, 0, 0] * 255).round().int().tolist()) <= set(range(10, 16))


def test_images_are_scaled_to_one_size(tmp_path):
    folder_of_images(tmp_path)
    picture(tmp_path / "north" / "cat" / "large.jpg", 90, (200, 100))
    picture(tmp_path / "north" / "cat" / "16bit.png", 25700, (20, 20), "I;16")
    assert Federation.from_folder(tmp_path).shape == (3, 64, 64)
    federation = Federation.from_folder(tmp_path, size=20, test_fraction=0.2)
    assert federation.shape == (3, 20, 20)
    shades = torch.cat([part.x[:, 0, 10, 10] for part in (*federation.train, *federation.test)])
    assert (shades * 255).round().int().tolist().count(100) == 1  # 25700 of 65535 is 100 of 255


def test_a_size_has_the_bounds_of_the_configuration(tmp_path):
    for size in (0, 7, -4, 513, True):
        with pytest.raises(FedSPMError, match=f"a whole number from 8 to 512; it is {size}"):
            Federation.from_folder(tmp_path, size=size)
    for size in (16.5, "64"):
        with pytest.raises(FedSPMError, match="a whole number from 8 to 512"):
            checked_size(size)
    assert checked_size(np.int64(16)) == 16


@pytest.mark.parametrize("above", [True, False])
def test_train_and_test_above_or_below_the_clients(tmp_path, above):
    for split, count in (("train", 5), ("test", 4)):
        for client in ("a", "b"):
            for j in range(count):
                place = tmp_path / split / client if above else tmp_path / client / split
                picture(place / f"class-{j % 2}" / f"{split}{j}.png", j * 10)
    federation = Federation.from_folder(tmp_path)
    assert federation.names == ("a", "b")
    assert [len(part) for part in (*federation.train, *federation.test)] == [5, 5, 4, 4]


@pytest.mark.parametrize("splits", [("train", "val", "test"), ("training", "validation")])
def test_folders_of_one_data_set_are_not_taken_for_clients(tmp_path, splits):
    """PATH/SPLIT/CLASS/image.png: held-out images would be trained on."""
    for split in splits:
        for label in ("cat", "dog"):
            picture(tmp_path / split / label / "0.png")
    with pytest.raises(FedSPMError, match=r"the folders in .* parts of one data set, not clients"):
        Federation.from_folder(tmp_path)


def test_folders_of_one_data_set_are_not_taken_for_classes(tmp_path):
    for client in "ab":
        for split in ("train", "val"):
            picture(tmp_path / client / split / "cat" / "0.png")
    with pytest.raises(FedSPMError, match=r"the folders in .*a are called train, val: .* not classes; name them train"):
        Federation.from_folder(tmp_path)


@pytest.mark.parametrize("splits", [("train", "test"), ("train", "valid")])
def test_archives_of_one_data_set_are_not_taken_for_clients(tmp_path, splits):
    for split in splits:
        np.savez(tmp_path / f"{split}.npz", x=np.arange(12.0).reshape(6, 2), y=np.arange(6) % 2)
    with pytest.raises(FedSPMError, match="not clients; an archive a client has x, y, x_test and y_test"):
        Federation.from_folder(tmp_path)


def test_every_bad_image_is_named(tmp_path):
    folder_of_images(tmp_path)
    (tmp_path / "north" / "cat" / "text.jpg").write_text("I am not an image")
    cut = tmp_path / "süd" / "dog" / "cut.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 10), np.uint8)).save(cut)
    cut.write_bytes(cut.read_bytes()[:90])
    (tmp_path / "north" / "cat" / "notes.txt").write_text("ignored, and said")
    (tmp_path / "north" / "cat" / ".DS_Store").write_text("ignored")
    draft = read_own(tmp_path, Reading())
    assert len(draft.problems) == 2
    assert "text.jpg cannot be read as an image" in draft.problems[0]
    assert "cut.png cannot be read as an image" in draft.problems[1]
    assert any("notes.txt" in remark for remark in draft.remarks)
    with pytest.raises(FedSPMError, match=r"text\.jpg cannot be read.*and 1 more; `fedspm data check .*` lists them"):
        Federation.from_folder(tmp_path)


def test_images_without_a_class_and_empty_folders(tmp_path):
    (problem,) = problems(tmp_path)
    assert "holds nothing to train on" in problem
    (tmp_path / "north").mkdir()
    (problem,) = problems(tmp_path)
    assert "client 'north'" in problem
    assert "holds no class folders" in problem
    picture(tmp_path / "north" / "1.png")
    (problem,) = problems(tmp_path)
    assert "outside a class folder" in problem
    (tmp_path / "north" / "1.png").unlink()
    picture(tmp_path / "north" / "cat" / "deeper" / "1.png")
    assert any("lies inside a class folder" in each for each in problems(tmp_path))


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_table_of_image_paths(tmp_path, ending):
    """As Fed-ISIC2019: without endings, in images/, with the published folds."""
    rows = []
    for j in range(12):
        picture(tmp_path / "images" / f"ISIC_{j}.jpg", 10 * j)
        rows.append([f"ISIC_{j}", j % 3, j % 2, "test" if j > 5 else "train"])
    table = tmp_path / f"split{ending}"
    header = ["image", "target", "center", "fold"]
    if ending == ".csv":
        write_csv(table, rows, header)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
        columns["image"] = [{"bytes": (tmp_path / "images" / f"{i}.jpg").read_bytes()} for i in columns["image"]]
        parquet.write_table(pyarrow.table(columns), table)
    federation = Federation.from_table(table)
    assert federation.names == ("0", "1")
    assert federation.classes.tolist() == [0, 1, 2]
    assert federation.counts == (3, 3)
    assert [len(part) for part in federation.test] == [3, 3]
    assert federation.fingerprint == Federation.from_folder(tmp_path).fingerprint
    (tmp_path / "images" / "ISIC_3.jpg").unlink()
    if ending == ".csv":
        (problem,) = problems(table)
        assert "there is no image" in problem
        assert "row 4" in problem


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
    "kind", ["bom", "semicolons", "tabs", "decimal commas", "quoted", "parquet", "a table a client"]
)
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
    elif kind == "quoted":
        write_csv(path, ROWS, quoting=csv.QUOTE_ALL)
    elif kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        path = path.with_suffix(".parquet")
        parquet.write_table(pyarrow.table(dict(zip(HEADER, map(list, zip(*ROWS, strict=True)), strict=True))), path)
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
        (HEADER, (3, 1, ""), {}, "column 'age': row 4 has no finite 32-bit number"),
        (HEADER, (3, 1, "inf"), {}, "column 'age': row 4 has no finite 32-bit number"),
        (HEADER, (17, 1, "1e300"), {}, "column 'age': row 18 has no finite 32-bit number"),
        (HEADER, (3, 1, "old"), {}, "column 'age' holds 'old', which is not a number"),
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


def test_parquet_needs_pyarrow_and_is_checked(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1 and nothing")
    with pytest.raises(FedSPMError, match=r"t\.parquet"):
        Federation.from_table(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FedSPMError, match=r"pip install 'fedspm\[parquet\]'"):
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
    assert "clients" not in settings.said()["data"]
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
