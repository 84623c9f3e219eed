"""Read what a request says: pages, numbers, flags, names, JSON bodies. Raises ApiError for what it may not say."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pollux.management import views
from pollux.management.errors import ApiError, json_response, not_found
from pollux.message import RoutingType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import web

    from pollux.management.openapi import Body

MAXIMUM_PAGE = 1000
DEFAULT_PAGE = 100
MAXIMUM_NAME = 1024
#: Of 64 bits.
_ID_DIGITS = 20
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def paged(request: web.Request, items: Iterable[Any], view: Any = None) -> web.Response:
    """Answer with the page of ``items`` that the request wants, each as ``view`` shows it."""
    page = number_in(request, "page", 1, 1, 1 << 30)
    size = number_in(request, "pageSize", DEFAULT_PAGE, 1, MAXIMUM_PAGE)
    found = views.page(items, page, size)
    if view is not None:
        found["items"] = [view(item) for item in found["items"]]
    return json_response(found)


def number_in(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    """Return a parameter of the URL that is a number from ``least`` to ``most``."""
    text = request.query.get(name)
    if text is None:
        return default
    if not is_number(text) or not least <= int(text) <= most:
        raise ApiError(400, "bad-request", f"{name} must be a number from {least} to {most}")
    return int(text)


def is_number(text: str) -> bool:
    """Take digits as int() reads them (a superscript two is a digit, too), and no more than a number here can have."""
    return text.isascii() and text.isdigit() and len(text) < 19


def flag_in(request: web.Request, name: str) -> bool:
    """Return a parameter of the URL that is true or false; false when it is not given."""
    text = request.query.get(name, "false").lower()
    if text not in ("true", "false", "1", "0", ""):
        raise ApiError(400, "bad-request", f"{name} must be true or false")
    return text in ("true", "1", "")


async def body_of(request: web.Request, shape: Body) -> dict[str, Any]:
    """Return the request's JSON object, checked against ``shape``."""
    return checked(await request.read(), shape)


def checked(text: bytes, shape: Body) -> dict[str, Any]:
    """Return a JSON object, checked against ``shape``."""
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # half a pair has no UTF-8: no name, no text can have it
    except (ValueError, RecursionError):
        raise ApiError(400, "bad-request", "the body must be a JSON object") from None
    if not isinstance(value, dict):
        raise ApiError(400, "bad-request", "the body must be a JSON object")
    problem = shape.problem(value)
    if problem is not None:
        raise ApiError(400, "bad-request", problem)
    return value


def name_in(text: str) -> str:
    """Return a name that can be one."""
    if not text or len(text) > MAXIMUM_NAME or any(ord(character) < 32 for character in text):
        raise ApiError(400, "bad-request", f"a name has 1 to {MAXIMUM_NAME} characters and no control characters")
    return text


def orphan_in(request: web.Request) -> int:
    """Return the number of a queue that the path names."""
    text = request.match_info["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS):
        raise not_found("orphans of queue", text)
    return int(text)


def xid_in(request: web.Request) -> bytes:
    """Return the identifier of a prepared transaction that the path names."""
    text = request.match_info["xid"]
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise not_found("prepared transaction", text) from None


def routing_type_in(name: str) -> RoutingType:
    """Return the routing type of that name."""
    try:
        return RoutingType[name]
    except KeyError:
        raise ApiError(400, "bad-request", f"{name!r} is not a routing type: use ANYCAST or MULTICAST") from None
