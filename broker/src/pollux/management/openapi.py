"""The API's OpenAPI 3.1 document, made from the table of routes, and the shapes request bodies are checked by. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pollux.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_SCHEMAS: Mapping[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "strings": {"type": "array", "items": {"type": "string"}},
    "integers": {"type": "array", "items": {"type": "integer"}},
    "objects": {"type": "array", "items": {"type": "object"}},
    "object": {"type": "object"},
}
_MAXIMUM_ITEMS = 100_000


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def _list_of(value: object, check: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and len(value) <= _MAXIMUM_ITEMS and all(check(item) for item in value)


_CHECKS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "string": (lambda value: isinstance(value, str), "a string"),
    "integer": (_is_integer, "an integer"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "strings": (lambda value: _list_of(value, lambda item: isinstance(item, str)), "a list of strings"),
    "integers": (lambda value: _list_of(value, _is_integer), "a list of integers"),
    "object": (lambda value: isinstance(value, dict), "an object"),
    "objects": (lambda value: _list_of(value, lambda item: isinstance(item, dict)), "a list of objects"),
}


class Query(Struct, frozen=True):
    """Describe a parameter in the URL."""

    name: str
    kind: str
    text: str


class Body(Struct, frozen=True):
    """A JSON object: names and kinds of what it must and what it may have."""

    required: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)

    def problem(self, value: dict[str, Any]) -> str | None:
        """Say what is wrong with ``value``; None when nothing is."""
        known = {**self.required, **self.optional}
        for name in self.required:
            if name not in value:
                return f"{name!r} is missing"
        for name, given in value.items():
            kind = known.get(name)
            if kind is None:
                return f"{name[:60]!r} is not known: allowed are {', '.join(known)}"
            check, words = _CHECKS[kind]
            if (given is not None or name in self.required) and not check(given):
                return f"{name!r} must be {words}"
        return None

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the body."""
        known = {**self.required, **self.optional}
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: _SCHEMAS[kind] for name, kind in known.items()},
            "additionalProperties": False,
        }
        if self.required:
            schema["required"] = list(self.required)
        return schema


class Operation(Struct, frozen=True):
    """A route: ``handler`` is the name of a method of the API, whose docstring is the summary."""

    method: str
    path: str
    handler: str
    tag: str
    query: tuple[Query, ...] = ()
    body: Body | None = None
    statuses: tuple[int, ...] = (200,)
    public: bool = False


def document(operations: Iterable[Operation], summaries: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The OpenAPI document of these routes. ``summaries`` are sentences by handler name."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, summaries or {})
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pollux", "version": VERSION, "description": "Management of a Pollux message broker."},
        "servers": [{"url": "/"}],
        "security": [{"basic": []}, {"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["code", "message"],
                            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
                        }
                    },
                }
            },
        },
    }


def _operation(operation: Operation, summaries: Mapping[str, str]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    parameters += [
        {"name": query.name, "in": "query", "description": query.text, "schema": _SCHEMAS[query.kind]}
        for query in operation.query
    ]
    text = operation.path == "/metrics"
    content = {"text/plain": {"schema": {"type": "string"}}} if text else {"application/json": {"schema": {}}}
    responses: dict[str, Any] = {
        str(status): {"description": "As asked." if status < 400 else "Not now.", "content": content}
        for status in operation.statuses
    }
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses["default"] = {"description": "Refused; the error says why.", "content": error}
    described: dict[str, Any] = {
        "operationId": operation.handler,
        "tags": [operation.tag],
        "summary": summaries.get(operation.handler, ""),
        "responses": responses,
    }
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": operation.body.schema()}},
        }
    if operation.public:
        described["security"] = []
    return described
