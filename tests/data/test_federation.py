"""Bad input gets one sentence that names the client and what to do."""

import numpy as np
import pytest
import torch

from fedspm import FederatedClassifier, Federation
from fedspm.base.errors import FedSPMError
from fedspm.data.federation import _path

X, Y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
GOOD = {"north": (X, Y), "south": (X + 1, Y)}


def broken(value, at=(3, 1)):
    x = X.copy()
    x[at] = value
    return x


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ({}, "at least two clients, this one has 0"),
        ({"north": (X, Y)}, "at least two clients, this one has 1"),
        (GOOD | {"west": (X[:0], Y[:0])}, "client 'west' has no rows"),
        (GOOD | {"west": (X[:1], Y[:1])}, "client 'west' has only one row"),
        (GOOD | {"west": (broken(np.nan), Y)}, "client 'west': row 4 has a value that is not a finite"),
        (GOOD | {"west": (broken(np.inf), Y)}, "client 'west': row 4"),
        (GOOD | {"west": (X[:, :2], Y)}, r"client 'west' has rows of shape \(2,\), client 'north' of shape \(3,\)"),
        (GOOD | {"west": (X, Y[:5])}, "client 'west': y has shape"),
        (GOOD | {"west": (X[:, 0], Y)}, r"client 'west': x has shape \(20,\)"),
        (GOOD | {"west": (X[:, :0], Y)}, r"client 'west': x has shape \(20, 0\): there is not a single value in a row"),
        (GOOD | {"west": (X, Y.astype(np.uint64) + 2**63)}, "client 'west': label 9223372036854775809 is too large"),
        (GOOD | {"west": (X, [2**63, -1] * 10)}, "client 'west': labels must be integers or strings"),
        (GOOD | {"west": X}, r"client 'west': give a pair"),
        (GOOD | {"west": (X, Y + 0.5)}, "labels must be integers or strings"),
        (GOOD | {"west": ([["a", "b"]], [1])}, "client 'west': x cannot be read as an array of numbers"),
        ({"north": (X, Y * 0), "south": (X, Y * 0)}, "one class only"),
        ({1: (X, Y), "1": (X, Y)}, "same name"),
        (GOOD | {"west": (X, [0, "a"] * 10)}, "some labels are strings and some are not"),
        (GOOD | {"west": (X, np.array([None, "a"] * 10, dtype=object))}, "some labels are strings and some are not"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_bad_clients(clients, sentence):
    with pytest.raises(FedSPMError, match=sentence) as caught:
        Federation.from_arrays(clients)
    assert "\n" not in str(caught.value)


def test_bad_test_rows():
    with pytest.raises(FedSPMError, match="'east', which is not one of the clients"):
        Federation.from_arrays(GOOD, {"east": (X, Y)})
    with pytest.raises(FedSPMError, match="client 'north', test rows: label 7 does not occur"):
        Federation.from_arrays(GOOD, {"north": (X, np.full(20, 7))})
    with pytest.raises(FedSPMError, match="client 'north', test rows: rows have shape"):
        Federation.from_arrays(GOOD, {"north": (X[:, :1], Y)})
    with pytest.raises(FedSPMError, match="client 'south', test rows: row 4"):
        Federation.from_arrays(GOOD, {"south": (broken(np.nan), Y)})


def test_one_class_in_a_client_is_a_warning_not_an_error():
    with pytest.warns(UserWarning, match="client 'west' has one class only"):
        Federation.from_arrays(GOOD | {"west": (X, Y * 0)})


def test_more_components_than_rows():
    with pytest.raises(FedSPMError, match="client 'west' has 4 training rows, fewer than the 6 components"):
        FederatedClassifier(components=6).fit(Federation.from_arrays(GOOD | {"west": (X[:4], Y[:4])}))


def test_arrays_of_many_kinds_mean_the_same():
    strings = np.array(["b", "a"])[Y]
    kinds = [
        {"north": (X, strings), "south": (X + 1, strings)},
        {"north": (torch.tensor(X), list(strings)), "south": ((X + 1).tolist(), strings.astype(object))},
    ]
    one, other = (Federation.from_arrays(kind) for kind in kinds)
    assert one.fingerprint == other.fingerprint
    assert one.classes.tolist() == ["a", "b"]
    numbers = Federation.from_arrays({"north": (X, torch.tensor(Y)), "south": (X, Y.astype(float))})
    assert numbers.classes.tolist() == [0, 1]


def test_rows_are_held_out_by_fraction():
    federation = Federation.from_arrays(GOOD, test_fraction=0.25)
    assert [len(part) for part in federation.test] == [5, 5]
    assert federation.counts == (15, 15)


def test_whole_numbers_in_an_object_array_stay_whole_numbers():
    federation = Federation.from_arrays({name: (X, Y.astype(object)) for name in ("north", "south")})
    assert federation.classes.tolist() == [0, 1]


def test_rows_have_the_numbers_of_their_array_however_many_are_held_out():
    for row in range(20):
        with pytest.raises(FedSPMError, match=f"client 'west': row {row + 1} has a value"):
            Federation.from_arrays(GOOD | {"west": (broken(np.nan, (row, 0)), Y)}, test_fraction=0.5)


@pytest.mark.filterwarnings("error")
def test_arrays_as_numpy_may_lay_them_out():
    locked = X.copy()
    locked.flags.writeable = False
    plain = Federation.from_arrays(GOOD)
    for x in (X[:, ::-1].copy()[:, ::-1], X.astype(">f8"), locked, np.asfortranarray(X)):
        assert Federation.from_arrays({"north": (x, Y), "south": (X + 1, Y)}).fingerprint == plain.fingerprint


def test_whole_numbers_of_two_kinds_stay_whole_numbers():
    kinds = {"north": (X, Y.astype(np.uint64)), "south": (X, Y.astype(np.int64)), "west": (X, Y.astype(">i2"))}
    classes = Federation.from_arrays(kinds).classes
    assert classes.dtype == np.int64
    assert classes.tolist() == [0, 1]


def test_validation_needs_rows():
    federation = Federation.from_arrays(GOOD, test_fraction=0.25)
    assert [len(part) for part in federation.with_validation(0.2, 0).test] == [3, 3]
    with pytest.raises(FedSPMError, match=r"data.validation_fraction = 0.01 holds out no row .* has 15 training rows"):
        federation.with_validation(0.01, 0)


def test_a_column_that_32_bits_cannot_hold_is_warned_of():
    random = np.random.default_rng(0)
    given = {name: (random.normal([0, 3e7], 1, size=(40, 2)), np.arange(40) % 2) for name in ("north", "south")}
    with pytest.warns(UserWarning, match=r"'day' lies around 3e\+07 and varies by .*steps of 2: subtract"):
        made = Federation.from_arrays(given, columns=["age", "day"])
    assert made.columns == ("age", "day")
    with pytest.warns(UserWarning, match="'feature 1' lies"):
        Federation.from_arrays(given)
    with pytest.raises(FedSPMError, match="3 columns have names"):
        Federation.from_arrays(given, columns=["a", "b", "c"])


def test_a_notebook_prints_no_rows(vectors):
    assert repr(vectors) == "Federation(3 clients, 2 classes, 360 training rows of 6, 180 for testing)"
    assert repr(vectors.train[0]) == "Part(90 rows of 6)"


def test_what_is_in_memory_is_no_path(vectors):
    with pytest.raises(FedSPMError, match=r"Federation\.from_table takes a path, this is a Federation; .* from_arrays"):
        _path(vectors, "from_table")
