"""What goes wrong between a client and the service, in one form.

Every refusal is `{"error": {"code": …, "message": …}}` with the status that HTTP has for it. The
code is for programs and doesn't change; the message is for people, says what to do, and never
repeats what may be a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from agentgym.remote.schema import API_VERSION, PREFIX, VERSION_HEADER

logger = logging.getLogger(__name__)

_SHOWN_FAULTS = 5


def refused(when: str) -> dict[str, Any]:
    """A refusal in the description of a route's answers.

    It names the body's schema, which one answer of the route has to bring as its model: a model
    for each would be most of the time that the service takes to start.

    Args:
        when: When it is given, a sentence.
    """
    schema = {"$ref": "#/components/schemas/FaultBody"}
    return {"description": when, "content": {"application/json": {"schema": schema}}}


class ServiceFault(Exception):
    """A request is refused.

    Args:
        status: HTTP status.
        code: What it is, for programs.
        message: One line: what happened, and what to do.
        retry_after_s: When the same request may succeed, seconds.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    def response(self) -> JSONResponse:
        """The answer that says so."""
        headers = {VERSION_HEADER: API_VERSION}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after_s)))
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        body = {"error": {"code": self.code, "message": self.message}}
        return JSONResponse(body, self.status, headers)


def invalid(error: RequestValidationError) -> ServiceFault:
    """A request whose fields aren't as they should be; values, which may be secret, stay out."""
    faults = error.errors()
    texts = []
    for fault in faults[:_SHOWN_FAULTS]:
        place = [str(part) for part in fault["loc"] if part != "body"]
        text = str(fault["msg"]).removeprefix("Value error, ")
        if fault["type"] == "json_invalid":
            place, text = [], f"no JSON from character {'.'.join(place)} on"
        elif fault["type"] == "extra_forbidden":
            text = f"there is no such field; {PREFIX}/openapi.json lists them"
        texts.append(f"{'.'.join(place) or 'body'}: {text}")
    if len(faults) > _SHOWN_FAULTS:
        texts.append(f"and {len(faults) - _SHOWN_FAULTS} more")
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    if any(fault["type"] == "json_invalid" for fault in faults):
        status = HTTPStatus.BAD_REQUEST
    return ServiceFault(status, "invalid_request", "; ".join(texts))


def no_such_path(path: str) -> ServiceFault:
    """Nothing is served there; a path of another API version is told apart."""
    first = path.strip("/").partition("/")[0]
    if first != API_VERSION and first[:1] == "v" and first[1:].isdigit():
        message = f"this service speaks API {API_VERSION}, not {first}; use paths under {PREFIX}"
        return ServiceFault(HTTPStatus.NOT_FOUND, "wrong_api_version", message)
    message = f"nothing is served at this path; {PREFIX}/openapi.json lists what is"
    return ServiceFault(HTTPStatus.NOT_FOUND, "not_found", message)


def render_faults(app: FastAPI) -> None:
    """Have the app answer every refusal, its own and the framework's, in the one form."""

    def handler(
        make: Callable[[Request, Any], ServiceFault],
    ) -> Callable[[Request, Any], Awaitable[JSONResponse]]:
        async def handle(request: Request, error: Any) -> JSONResponse:
            return make(request, error).response()

        return handle

    def of_http(request: Request, error: HTTPException) -> ServiceFault:
        if error.status_code == HTTPStatus.NOT_FOUND:
            return no_such_path(request.url.path)
        status = HTTPStatus(error.status_code)
        return ServiceFault(status, status.name.lower(), str(error.detail))

    def of_bug(request: Request, error: Exception) -> ServiceFault:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        message = "the service itself failed; its log has the cause"
        return ServiceFault(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", message)

    app.add_exception_handler(ServiceFault, handler(lambda _, fault: fault))
    app.add_exception_handler(RequestValidationError, handler(lambda _, error: invalid(error)))
    app.add_exception_handler(HTTPException, handler(of_http))
    app.add_exception_handler(Exception, handler(of_bug))
