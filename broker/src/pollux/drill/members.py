"""A member of a drill as something to watch and to break: its management API, its process, its commands."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from msgspec import Struct

from pollux.client.errors import LoginError
from pollux.drill.errors import UnavailableError

if TYPE_CHECKING:
    from pollux.drill.manifest import Manifest, Member

_REQUEST_TIMEOUT = 2.0
#: Between two questions to a member that is watched, unless somebody says otherwise.
WATCH_SECONDS = 0.05
_START_LIMIT = 60.0
_STOP_LIMIT = 60.0


def now() -> float:
    """Milliseconds of the machine's monotonic clock, the ledger's times."""
    return time.monotonic() * 1000


class Seen(Struct, frozen=True):
    """Hold what a member's management said. `state` is "live", "ready" ..., or "down" when nothing answered."""

    state: str
    node: str = ""
    epoch: int | None = None

    @property
    def live(self) -> bool:
        """Whether it serves clients."""
        return self.state == "live"


DOWN = Seen("down")


def _authorization(user: str, password: str) -> dict[str, str]:
    """The header that logs in (RFC 7617)."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")}


class Members:
    """All members. An async context manager; commands and requests have deadlines."""

    def __init__(
        self, manifest: Manifest, user: str | None, password: str | None, watch_seconds: float = WATCH_SECONDS
    ) -> None:
        self.members = manifest.members
        #: Between two questions to a member.
        self.watch_seconds = watch_seconds
        self._headers = _authorization(user, password or "") if user is not None else {}
        self._session: aiohttp.ClientSession | None = None
        self._denied: str | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    # -- management

    async def request(
        self,
        member: Member,
        path: str,
        *,
        method: str = "GET",
        timeout: float = _REQUEST_TIMEOUT,  # noqa: ASYNC109
    ) -> Any:
        """The JSON answer to a request; None when there is none (down, refused, not JSON)."""
        if self._session is None:
            return None
        try:
            async with self._session.request(
                method, member.management + path, timeout=aiohttp.ClientTimeout(total=timeout)
            ) as answer:
                if answer.status in (401, 403):
                    self._denied = f"{member.name}: the management API refused the log-in (status {answer.status})"
                if answer.status >= 400 and answer.status != 503:
                    return None
                return await answer.json(content_type=None)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

    async def look(self, member: Member) -> Seen:
        """Return what a member is now."""
        found = await self.request(member, "/api/v1/status")
        return seen_in(found)

    async def live(self, *, other_than: Member | None = None) -> Member | None:
        """The first member to say that it serves; one that hangs is not waited for then."""
        looks = {asyncio.create_task(self.look(each)): each for each in self.members if each is not other_than}
        try:
            for done in asyncio.as_completed(looks):
                if (await done).live:
                    return next(member for task, member in looks.items() if task.done() and task.result().live)
        finally:
            for task in looks:
                task.cancel()
        return None

    async def wait_for_live(self, limit: float, *, other_than: Member | None = None) -> Member:
        """Wait until one serves. Raises UnavailableError after `limit` seconds, LoginError when we may not ask."""
        deadline = time.monotonic() + limit
        while True:
            member = await self.live(other_than=other_than)
            if member is not None:
                return member
            if self._denied is not None:
                raise LoginError(self._denied)
            if time.monotonic() > deadline:
                what = "no broker" if other_than is None else f"nobody but {other_than.name}"
                raise UnavailableError(f"{what} became live within {limit:.0f} s; see the logs of all members")
            await asyncio.sleep(self.watch_seconds)

    async def queue_messages(self, names: set[str]) -> dict[str, int] | None:
        """Messages by queue, for queues not empty whose name or address is in `names`; None when nobody says."""
        member = await self.live()
        found = await self.request(member, "/api/v1/queues?pageSize=500&filter=pollux.drill") if member else None
        if not isinstance(found, dict):
            return None
        items = [item for item in found.get("items", []) if names & {item.get("name"), item.get("address")}]
        return {str(item.get("name")): count for item in items if (count := int(item.get("messages", 0)))}

    async def history(self) -> list[dict[str, Any]]:
        """The activations the brokers remember: the longest list any of them gives."""
        answers = await asyncio.gather(*(self.request(each, "/api/v1/activation/history") for each in self.members))
        found = [answer.get("items") for answer in answers if isinstance(answer, dict)]
        lists = [items for items in found if isinstance(items, list)]
        return max(lists, key=len, default=[])

    # -- processes

    def pid(self, member: Member) -> int:
        """The member's process. Raises UnavailableError."""
        if member.pid_file is None:
            raise UnavailableError(f"{member.name} has no pid_file: its process is not on this machine")
        try:
            pid = int(member.pid_file.read_text().split()[0])
        except (OSError, ValueError, IndexError) as error:
            raise UnavailableError(f"{member.name}: {member.pid_file} holds no process id: {error}") from None
        if pid <= 1 or pid == os.getpid():
            raise UnavailableError(f"{member.name}: {member.pid_file} names process {pid}, which is no broker")
        return pid

    def signal(self, member: Member, number: signal.Signals) -> None:
        """Send a signal to the member's process. Raises UnavailableError."""
        pid = self.pid(member)
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError) as error:
            raise UnavailableError(f"{member.name}: process {pid}: {error.strerror}") from None

    async def start(self, member: Member) -> None:
        """Run the start command. It may return at once, or when the broker is ready."""
        await _command(member, member.start, _START_LIMIT, "start")

    async def kill(self, member: Member) -> None:
        """Run the kill command, which ends when the broker has."""
        await _command(member, member.kill, _STOP_LIMIT, "kill")

    async def switchover(self, member: Member) -> None:
        """Run the command that has another member serve."""
        await _command(member, member.switchover, _STOP_LIMIT, "switchover")

    async def stop(self, member: Member) -> None:
        """Stop cleanly, and wait until the process is gone."""
        if member.pid_file is None:
            await _command(member, member.stop, _STOP_LIMIT, "stop")
            return
        pid = self.pid(member)
        if member.stop:
            await _command(member, member.stop, _STOP_LIMIT, "stop")
        else:
            self.signal(member, signal.SIGTERM)
        await self.wait_until_gone(member, pid)

    async def wait_until_gone(self, member: Member, pid: int) -> None:
        """Wait until a process has ended."""
        deadline = time.monotonic() + _STOP_LIMIT
        while runs(pid):
            if time.monotonic() > deadline:
                raise UnavailableError(f"{member.name}: process {pid} does not end")
            await asyncio.sleep(0.01)


def seen_in(found: Any) -> Seen:
    """Return what a status answer says."""
    if not isinstance(found, dict):
        return DOWN
    activation = found.get("activation")
    node = str(found.get("nodeId") or "")
    store = found.get("store")
    epoch = store.get("epoch") if isinstance(store, dict) else None
    if isinstance(activation, dict):
        state = str(activation.get("state", ""))
        epoch = activation.get("epoch", epoch) if state == "live" else epoch
        node = str(activation.get("nodeId") or activation.get("node_id") or node)
    else:
        state = "live" if found.get("ready") else str(found.get("state") or "starting")
    return Seen(state, node, epoch if isinstance(epoch, int) else None)


def runs(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


async def _command(member: Member, words: tuple[str, ...], limit: float, what: str) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise UnavailableError(f"{member.name}: {what} command {words[0]}: {error.strerror}") from None
    try:
        async with asyncio.timeout(limit):
            code = await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise UnavailableError(f"{member.name}: {what} command did not end within {limit:.0f} s") from None
    if code != 0:
        raise UnavailableError(f"{member.name}: {what} command {words[0]} ended with {code}")
