"""Every refusal is a sentence: {"error": "…"} with the status that HTTP has for it."""

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from fedspm.base.errors import FedSPMError
from fedspm.serve.http.problem import HTTPProblem

HEADERS = {  # of every reply
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
log = logging.getLogger("fedspm.serve")


class Problem(TypedDict):
    """Why a request was refused."""

    error: str


def add_error_handlers(app: FastAPI) -> None:
    """Turn whatever is raised in the app, foreseen or not, into a reply with a sentence."""

    @app.exception_handler(HTTPProblem)
    async def refused(request: Request, error: HTTPProblem) -> JSONResponse:
        return problem_reply(error.status, str(error), error.headers)

    @app.exception_handler(FedSPMError)
    async def wrong(request: Request, error: FedSPMError) -> JSONResponse:
        return problem_reply(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where, what = ".".join(map(str, first["loc"][1:])), first["msg"]
        return problem_reply(422, f"{where}: {what[0].lower()}{what[1:]}")

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        text = {404: "there is nothing at this address", 405: f"{request.method} is not possible at this address"}
        return problem_reply(error.status_code, text.get(error.status_code, str(error.detail)), error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.error("a request failed: %s", type(error).__name__)  # never its text, which may hold the query
        return problem_reply(500, "something went wrong inside the service; its log says what kind of error it was")


def problem_reply(status: int, sentence: str, headers: object = None) -> JSONResponse:
    given = dict(headers) if isinstance(headers, dict) else {}
    return JSONResponse(Problem(error=sentence), status, HEADERS | given)
