"""The Python client of a running router: `fedspm.connect("http://127.0.0.1:8000").predict(x)`."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.arrays import is_frame
from fedspm.data.tables.schema import TableSchema
from fedspm.data.tables.table import Table

AT_ONCE, BYTES = 256, 8 * 2**20  # rows of a request and their bytes: half of what a router takes
FILES = 16  # image files of a request: their pixels count together, before they are scaled down
Queries = Any  # an array or a table of rows, or one row, or the path of an image, or a list of paths

Piece = Tensor | Sequence[str | Path] | list[dict[str, Any]]  # what one request holds; dicts are rows with names


class Connection:
    """Asks a router. Queries are arrays as the clients have them (uint8 images are divided by 255), or image files. The
    columns of a table (a DataFrame, or a row of it) are matched by name, as `FederatedClassifier.predict` does."""

    def __init__(self, url: str, token: str | None = None, seconds: float = 30.0, authority: str | Path | None = None):
        try:
            import httpx

            from fedspm.serve.http.auth import require_plain
            from fedspm.serve.http.tls import trust_context
        except ImportError as error:
            raise FedSPMError(f"the client needs {error.name}; pip install 'fedspm[serve]'") from error
        headers = {"authorization": f"Bearer {require_plain(token, 'the token')}"} if token else {}
        self._url = url
        self._http = httpx.Client(base_url=url, headers=headers, timeout=seconds, verify=trust_context(authority))
        self._broken: type[Exception] = httpx.HTTPError

    def predict(self, x: Queries, mode: str = "best", top: int = 3) -> np.ndarray:
        """(n,): labels, after routing."""
        return np.asarray([answer["prediction"] for answer in self.ask(x, mode, top)])

    def predict_proba(self, x: Queries, mode: str = "best", top: int = 3) -> np.ndarray:
        """(n, K): class probabilities, after routing."""
        return np.asarray([list(answer["probabilities"].values()) for answer in self.ask(x, mode, top)])

    def route(self, x: Queries) -> np.ndarray:
        """(n, m): P(client | x), clients in the order of `clients`. Of very many the router names the likeliest; the
        others have 0 here."""
        names = [about["client"] for about in self.clients()]
        answers = self._post("/v1/route", x, {})
        return np.asarray([[answer["posterior"].get(name, 0.0) for name in names] for answer in answers])

    def ask(self, x: Queries, mode: str = "best", top: int = 3) -> list[dict[str, Any]]:
        """Everything that the router says: one dict per row."""
        return self._post("/v1/predict", x, {"mode": mode, "top": top})

    def clients(self) -> list[dict[str, Any]]:
        """Clients and the health of their nodes."""
        found: list[dict[str, Any]] = self._read(lambda: self._http.get("/v1/clients"))
        return found

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, path: str, x: Queries, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        x, columns = self._in_order(x)
        for piece in _pieces(x):
            body = _body(piece, columns)
            try:
                content = self._read(lambda body=body: self._http.post(path, params=parameters, **body))
            except FedSPMError as error:
                raise FedSPMError(f"{error} (counted from row {len(found) + 1})" if found else str(error)) from error
            found += content.get("answers", [content])
        return found

    def _in_order(self, x: Queries) -> tuple[Queries, Sequence[str] | None]:
        """Named columns as the model has them now, and their names, which go with the rows: the router may have
        swapped in another model by then."""
        if hasattr(x, "to_frame") and hasattr(x, "index"):  # a row of a table
            x = x.to_frame().T
        if not is_frame(x):
            return x, None
        rows, about = Table.of_frame(x, "x"), self._read(lambda: self._http.get("/v1/model"))
        if about.get("table") is None:
            return rows.numbers("x"), None
        schema = TableSchema.parse(about["table"], "/v1/model")
        assert schema is not None
        order = schema.find(rows.names, "x")
        rows = Table(tuple(rows.columns[k] for k in order), rows.values[:, order])
        return (rows.values, rows.names) if schema.takes_arrays and rows.is_numeric else (rows.records(), None)

    def _read(self, send: Any) -> Any:
        try:
            response = send()
            content = response.json()
        except (self._broken, ValueError) as error:
            raise FedSPMError(f"{self._url} does not answer as a router does: {error}") from error
        if response.status_code != 200:
            why = content.get("error", "no reason given") if isinstance(content, dict) else "no reason given"
            raise FedSPMError(f"{self._url} refused ({response.status_code}): {why}")
        return content


def connect(
    url: str, token: str | None = None, *, seconds: float = 30.0, authority: str | Path | None = None
) -> Connection:
    """A connection to a running router. `authority` is the certificate that signed the router's, if it is your own."""
    return Connection(url, token, seconds, authority)


def _pieces(x: Queries) -> Iterator[Piece]:
    """As many rows as a router takes at once. A single row is a vector, or has few channels: it stays whole."""
    x = [x] if isinstance(x, str | Path) else x
    if isinstance(x, Sequence) and x and all(isinstance(each, str | Path) for each in x):
        yield from (x[start : start + FILES] for start in range(0, len(x), FILES))
        return
    if isinstance(x, list) and x and isinstance(x[0], dict):
        yield from (x[start : start + AT_ONCE] for start in range(0, len(x), AT_ONCE))
        return
    try:
        rows = x.detach().cpu() if isinstance(x, Tensor) else torch.as_tensor(np.array(x))
    except (TypeError, ValueError) as error:
        raise FedSPMError(f"x cannot be read as an array of numbers ({error})") from error
    if rows.ndim in (0, 1, 3) or not len(rows):
        yield rows
    else:
        yield from rows.split(max(1, min(AT_ONCE, BYTES // max(1, 4 * rows[0].numel()))))


def _body(x: Piece, columns: Sequence[str] | None = None) -> dict[str, Any]:
    if isinstance(x, list) and isinstance(x[0], dict):
        return {"json": {"x": x}}
    if not isinstance(x, Tensor):
        try:
            return {"files": [("images", Path(each).read_bytes()) for each in x if not isinstance(each, dict)]}
        except OSError as error:
            raise FedSPMError(f"{error.filename} cannot be read: {error.strerror}") from error
    said = {"columns": json.dumps(list(columns), ensure_ascii=False)} if columns else None
    content = save({"x": (x if x.dtype is torch.uint8 else x.float()).contiguous()}, said)
    return {"content": content, "headers": {"content-type": "application/x-safetensors"}}
