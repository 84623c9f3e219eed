"""The command line's HTTP client: finds a broker, logs in, asks, and turns refusals into exit codes."""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlencode, urlsplit

from pollux.cli.locate import find_status, process_exists
from pollux.cli.output import CommandError, fail
from pollux.process.exits import EXIT_DENIED, EXIT_FAILED, EXIT_UNAVAILABLE, EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Seconds one request may take.
TIMEOUT = 30.0
#: Items asked for at a time when a list is fetched whole.
PAGE_SIZE = 500
#: Bytes of a file read and sent at a time.
UPLOAD_BYTES = 128 << 10
#: Collections of the API -> the command that lists them.
_LISTS = {"queues": "queue", "addresses": "address", "connections": "connection"}


class Client:
    """Requests to one broker. Failures end the command with the exit code they have."""

    def __init__(self, url: str, authorization: str | None, ca_file: Path | None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            fail(f"--url {url}: expected http://HOST:PORT or https://HOST:PORT", EXIT_USAGE)
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._headers = {"Accept": "application/json"}
        if authorization is not None:
            self._headers["Authorization"] = authorization
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
            except (OSError, ssl.SSLError) as error:
                fail(f"--ca-file {ca_file}: cannot be used: {error}", EXIT_USAGE)
            self._connection = http.client.HTTPSConnection(
                parts.hostname, parts.port or 8161, timeout=TIMEOUT, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 8161, timeout=TIMEOUT)

    def get(self, path: str, **query: Any) -> Any:
        """Return the answer to GET."""
        return self.request("GET", path, query=query)

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        """Return the answer to POST."""
        return self.request("POST", path, body=body, query=query)

    def delete(self, path: str, **query: Any) -> Any:
        """Return the answer to DELETE."""
        return self.request("DELETE", path, query=query)

    def items(self, path: str, limit: int | None = None, **query: Any) -> Iterator[dict[str, Any]]:
        """Every item of a list, fetched page by page."""
        page = 1
        count = 0
        while True:
            answer = self.get(path, page=page, pageSize=PAGE_SIZE, **query)
            for item in answer["items"]:
                if limit is not None and count >= limit:
                    return
                count += 1
                yield item
            if page * PAGE_SIZE >= answer["total"]:
                return
            page += 1

    def is_ready(self) -> bool:
        """Whether the broker serves; False too when it does not answer at all."""
        try:
            return bool(self.get("/health/ready")["ready"])
        except (CommandError, LookupError, TypeError):
            return False

    def upload(self, path: str, head: dict[str, Any], source: BinaryIO, size: int) -> Any:
        """POST ``head`` as JSON and ``size`` bytes of ``source`` behind it, never held as a whole."""
        text = json.dumps(head).encode()

        def parts() -> Iterator[bytes]:
            yield text
            left = size
            while left and (data := source.read(min(left, UPLOAD_BYTES))):
                left -= len(data)
                yield data

        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(text) + size)}
        return self._exchange("POST", path, {"head": len(text)}, parts(), headers)

    def request(self, method: str, path: str, *, body: Any = None, query: dict[str, Any] | None = None) -> Any:
        """Send a request; returns the decoded answer."""
        if body is None:
            return self._exchange(method, path, query, None, {})
        return self._exchange(method, path, query, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _exchange(
        self,
        method: str,
        path: str,
        query: dict[str, Any] | None,
        data: bytes | Iterator[bytes] | None,
        more: dict[str, str],
    ) -> Any:
        given = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in (query or {}).items()
            if value is not None
        }
        target = path + ("?" + urlencode(given) if given else "")
        try:
            self._connection.request(method, target, body=data, headers=self._headers | more)
            response = self._connection.getresponse()
            text = response.read()
        except ssl.SSLError as error:
            self._connection.close()
            fail(f"{self._url}: TLS failed: {error.reason or error}; see --ca-file", EXIT_UNAVAILABLE)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            fail(f"{self._url}: no broker answers: {reason}", EXIT_UNAVAILABLE)
        return self._decode(method, path, response.status, text)

    def _decode(self, method: str, path: str, status: int, text: bytes) -> Any:
        try:
            answer = json.loads(text) if text else None
        except ValueError:
            fail(f"{self._url}{path}: answered something that is not JSON; is it a Pollux broker?", EXIT_UNAVAILABLE)
        if status < 400 or (path.startswith("/health") and status == 503):
            return answer
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        reason = error.get("message") or f"{method} {path} was answered with status {status}"
        if status == http.client.NOT_FOUND and (kind := _LISTS.get(path.split("/")[3] if path.count("/") > 3 else "")):
            reason = f"{reason} at {self._url}; pollux {kind} list shows which there are"
        code = EXIT_DENIED if status in (401, 403) else EXIT_UNAVAILABLE if status == 503 else EXIT_FAILED
        raise CommandError(str(reason), code)


def connect(
    *,
    url: str | None = None,
    user: str | None = None,
    password_file: str | None = None,
    data: Path | None = None,
    config: Path | None = None,
    ca_file: Path | None = None,
) -> Client:
    """The client for the broker that the options, the environment or this machine's files name."""
    if url is not None:
        return Client(url, _basic(user, password_file), ca_file)
    status, token = find_status(data, config)
    management = status.get("management")
    if not process_exists(int(status["pid"])):
        fail(
            f"broker {status['name']!r} (process {status['pid']}) is gone without having stopped; start it again",
            EXIT_UNAVAILABLE,
        )
    if not management or not management.get("port"):
        fail(
            f'broker {status["name"]!r} has no HTTP port (yet, or <px:management enabled="false">)',
            EXIT_UNAVAILABLE,
        )
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(management["host"], management["host"])  # noqa: S104
    netloc = f"[{host}]" if ":" in host else host
    scheme = "https" if management.get("tls") else "http"
    authorization = _basic(user, password_file) if user is not None else f"Bearer {token}"
    return Client(f"{scheme}://{netloc}:{management['port']}", authorization, ca_file)


def _basic(user: str | None, password_file: str | None) -> str | None:
    if user is None:
        return None
    from pollux.cli.users import read_secret

    if password_file is None:
        if not os.isatty(0):
            fail("--user needs --password-file (or a terminal to ask for the password)", EXIT_USAGE)
        import typer

        password = str(typer.prompt(f"Password of {user}", hide_input=True))
    else:
        password = read_secret(password_file)
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
