"""Errors of the API: which status each has, and the JSON it is told in."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pollux.errors import (
    AuthenticationError,
    DiskFullError,
    InvalidRequestError,
    LimitError,
    NoSuchAddressError,
    NoSuchQueueError,
    NotPermittedError,
    PolluxError,
    StoreError,
)
from pollux.logs import failure
from pollux.routing.selector import SelectorError

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

logger = logging.getLogger("pollux.management")


class ApiError(PolluxError):
    """A request that is wrong by itself; ``status`` is the answer's."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def not_found(kind: str, name: object) -> ApiError:
    """The thing asked for does not exist."""
    return ApiError(404, "not-found", f"there is no {kind} {name!r}")


#: First match counts.
_KNOWN: tuple[tuple[type[PolluxError], int, str], ...] = (
    (NoSuchQueueError, 404, "not-found"),
    (NoSuchAddressError, 404, "not-found"),
    (AuthenticationError, 401, "not-authenticated"),
    (NotPermittedError, 403, "not-permitted"),
    (LimitError, 409, "limit"),
    (SelectorError, 400, "bad-request"),
    (InvalidRequestError, 409, "conflict"),
    (DiskFullError, 507, "disk-full"),
    (StoreError, 503, "store-failed"),
)


def error_response(status: int, code: str, message: str) -> web.Response:
    """``{"error": {"code": ..., "message": ...}}``."""
    headers = {"WWW-Authenticate": 'Basic realm="pollux", charset="UTF-8"'} if status == 401 else None
    return json_response({"error": {"code": code, "message": message}}, status=status, headers=headers)


def json_response(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """``value`` as JSON; never cached. Half a surrogate pair, which UTF-8 does not have, is told as its escape."""
    return web.Response(
        body=json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace"),
        status=status,
        content_type="application/json",
        charset="utf-8",
        headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})},
    )


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every failure in JSON; what nobody expected is logged and told without its details."""
    try:
        return await handler(request)
    except ApiError as error:
        return error_response(error.status, error.code, str(error))
    except PolluxError as error:
        for kind, status, code in _KNOWN:
            if isinstance(error, kind):
                return error_response(status, code, str(error))
        return error_response(400, "refused", str(error))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        response = error_response(error.status, (error.reason or "error").lower().replace(" ", "-"), error.text or "")
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        return response
    except (HttpProcessingError, web.RequestPayloadError) as error:
        # The body is not what its headers say: an encoding, a chunk.
        return error_response(400, "bad-request", f"the body cannot be read: {error_text(error)}")
    except ConnectionError:
        return error_response(400, "bad-request", "the client left before the end of its request")  # nobody reads it
    except Exception:
        failure(logger, logging.ERROR, "request failed", method=request.method, path=request.path)
        return error_response(500, "internal-error", "the request failed; the broker's log says why")


def error_text(error: BaseException) -> str:
    """An error of aiohttp's in one line."""
    return " ".join(str(error).split())[:200]


class OneLine(logging.Filter):
    """On aiohttp's logger: requests that are no HTTP are a line of information, not an error with a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written as it came; a refused request is changed first."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (HttpProcessingError, web.RequestPayloadError, ConnectionError)):
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.msg = f"HTTP request refused: {record.getMessage()}: {error_text(error)}"
            record.args = ()
            record.exc_info = record.exc_text = None
        return True
