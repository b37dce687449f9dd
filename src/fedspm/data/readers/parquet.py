"""Parquet in small pieces: a few hundred rows are in memory at a time."""

from collections.abc import Iterator, Sequence
from io import BufferedIOBase
from typing import Any

from fedspm.base.errors import DamagedFile, FedSPMError

ROWS = 500


class Table:
    """An open parquet file: its columns, its number of rows, and the rows in pieces."""

    def __init__(self, file: BufferedIOBase, where: str):
        try:
            import pyarrow
            from pyarrow.parquet import ParquetFile
        except ImportError as error:
            raise FedSPMError(f"{where}: reading parquet needs pyarrow; pip install 'fedspm[parquet]'") from error
        self.where = where
        self._errors = (pyarrow.ArrowException, OSError, EOFError)
        try:
            self._file = ParquetFile(file, pre_buffer=False, buffer_size=1 << 16)
        except self._errors as error:
            raise self._damaged(error) from error
        self.columns: list[str] = self._file.schema_arrow.names

    def column(self, *names: str) -> str | None:
        """The first of these that the file has."""
        return next((name for name in names if name in self.columns), None)

    def pieces(self, columns: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
        try:
            for batch in self._file.iter_batches(ROWS, columns=list(columns), use_threads=False):
                yield {name: batch.column(name).to_pylist() for name in columns}
        except self._errors as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DamagedFile:
        return DamagedFile(f"{self.where} is not a whole parquet file, it is damaged or cut off: {error}")
