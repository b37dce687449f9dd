"""Data sets in memory, by their interface alone: Hugging Face `Dataset`s, or a partitioner of Flower Datasets."""

from collections.abc import Mapping
from typing import Any

from fedspm.base.errors import FedSPMError
from fedspm.data.readers.columns import USUAL, Column, Frame, read_frames
from fedspm.data.readers.draft import Draft, ReadOptions
from fedspm.data.readers.splits import SPLITS, refuse_splits


def read_datasets(given: Any, how: ReadOptions) -> Draft:
    """A data set with a client column, a dict of one a client, or a partitioner with `load_partition`.

    Where a data set is expected there may be a dict of `train` and `test`.
    """
    if hasattr(given, "load_partition"):
        form = "a partition a client"
        natural = getattr(given, "partition_id_to_natural_id", {})  # of a partition by a column: its values
        parts = {str(natural.get(i, f"client-{i}")): given.load_partition(i) for i in range(given.num_partitions)}
        frames = [frame for name, part in parts.items() for frame in _frames(name, part, name, how)]
    elif isinstance(given, Mapping) and not _is_split(given):
        refuse_splits(map(str, given), "these data sets")
        form = "a data set a client"
        frames = [frame for name, part in given.items() for frame in _frames(str(name), part, str(name), how)]
    else:
        form = "a data set with a client column"
        frames = _frames("the data set", given, None, how)
    if not frames:
        raise FedSPMError("no data sets are given; give a dict with one a client")
    return read_frames(Draft("the data set", form, skip=how.skip), frames, how)


def _is_split(given: Any) -> bool:
    return isinstance(given, Mapping) and len(given) > 0 and set(given) <= SPLITS


def _frames(where: str, given: Any, client: str | None, how: ReadOptions) -> list[Frame]:
    if _is_split(given):
        return [_frame(f"{where}, {split}", part, client, split, how) for split, part in given.items()]
    return [_frame(where, given, client, None, how)]


def _frame(where: str, dataset: Any, client: str | None, split: str | None, how: ReadOptions) -> Frame:
    try:
        columns: dict[str, Column] = {name: dataset[name] for name in dataset.column_names}
    except (AttributeError, TypeError, KeyError) as error:
        raise FedSPMError(
            f"{where}: a {type(dataset).__name__} is not a data set with named columns, as those of Hugging Face are"
        ) from error
    features = getattr(dataset, "features", None) or {}
    label = how.label_column or next((name for name in columns if name.lower() in USUAL["label"]), "")
    names = getattr(features.get(label), "names", None)  # ClassLabel knows what its numbers mean
    return Frame(where, columns, client, split, class_names=names)
