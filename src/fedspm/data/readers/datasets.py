"""Data sets in memory, by their interface alone: Hugging Face `Dataset`s, or a partitioner of Flower Datasets."""

from collections.abc import Mapping
from typing import Any

from fedspm.base.errors import FedSPMError
from fedspm.data.readers.columns import USUAL, Block, Column, read_blocks
from fedspm.data.readers.draft import Draft, Reading
from fedspm.data.readers.splits import SPLITS, refuse_splits


def read_datasets(given: Any, how: Reading) -> Draft:
    """A data set with a client column, a dict of one a client, or a partitioner with `load_partition`.

    Where a data set is expected there may be a dict of `train` and `test`.
    """
    if hasattr(given, "load_partition"):
        form = "a partition a client"
        natural = getattr(given, "partition_id_to_natural_id", {})  # of a partition by a column: its values
        parts = {str(natural.get(i, f"client-{i}")): given.load_partition(i) for i in range(given.num_partitions)}
        blocks = [block for name, part in parts.items() for block in _blocks(name, part, name, how)]
    elif isinstance(given, Mapping) and not _is_split(given):
        refuse_splits(map(str, given), "these data sets")
        form = "a data set a client"
        blocks = [block for name, part in given.items() for block in _blocks(str(name), part, str(name), how)]
    else:
        form = "a data set with a client column"
        blocks = _blocks("the data set", given, None, how)
    if not blocks:
        raise FedSPMError("no data sets are given; give a dict with one a client")
    return read_blocks(Draft("the data set", form), blocks, how)


def _is_split(given: Any) -> bool:
    return isinstance(given, Mapping) and len(given) > 0 and set(given) <= SPLITS


def _blocks(where: str, given: Any, client: str | None, how: Reading) -> list[Block]:
    if _is_split(given):
        return [_block(f"{where}, {split}", part, client, split, how) for split, part in given.items()]
    return [_block(where, given, client, None, how)]


def _block(where: str, dataset: Any, client: str | None, split: str | None, how: Reading) -> Block:
    try:
        columns: dict[str, Column] = {name: dataset[name] for name in dataset.column_names}
    except (AttributeError, TypeError, KeyError) as error:
        raise FedSPMError(
            f"{where}: a {type(dataset).__name__} is not a data set with named columns, as those of Hugging Face are"
        ) from error
    features = getattr(dataset, "features", None) or {}
    label = how.label_column or next((name for name in columns if name.lower() in USUAL["label"]), "")
    names = getattr(features.get(label), "names", None)  # ClassLabel knows what its numbers mean
    return Block(where, columns, client, split, class_names=names)
