"""Every refusal is a sentence: {"error": "…"} with the status that HTTP has for it."""

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from fedspm.base.errors import FedSPMError
from fedspm.serve.http.guard import HEADERS, Declined

log = logging.getLogger("fedspm.serve")


def speaking(app: FastAPI) -> FastAPI:
    """This app, with all errors as sentences."""

    @app.exception_handler(Declined)
    async def refused(request: Request, error: Declined) -> JSONResponse:
        return sentence(error.status, str(error), error.headers)

    @app.exception_handler(FedSPMError)
    async def wrong(request: Request, error: FedSPMError) -> JSONResponse:
        return sentence(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return sentence(422, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg'][0].lower()}{first['msg'][1:]}")

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        text = {404: "there is nothing at this address", 405: f"{request.method} is not possible at this address"}
        return sentence(error.status_code, text.get(error.status_code, str(error.detail)), error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.error("a request failed: %s", type(error).__name__)  # never its text, which may hold the query
        return sentence(500, "something went wrong inside the service; its log says what kind of error it was")

    return app


def sentence(status: int, text: str, headers: object = None) -> JSONResponse:
    given = dict(headers) if isinstance(headers, dict) else {}
    return JSONResponse({"error": text}, status, HEADERS | given)
