"""A request that is refused: the HTTP status and the sentence that the caller gets."""

from collections.abc import Mapping

from fedspm.base.errors import FedSPMError


class HTTPProblem(FedSPMError):
    """Raised anywhere below the app; `http/errors.py` turns it into the reply {"error": sentence}."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})
