"""Other ways than multicast by which members exchange announcements, as a JGroups file names them.

What is exchanged is the datagram of :mod:`pollux.wire.core.datagram`, signed with the cluster password: who can write
to the directory or the table can announce nobody. Everything is called in the loop's thread; what blocks is in another.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import struct
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollux.cluster.discovery import Announcer, Discovered, DiscoveryError
from pollux.config.jgroups import FilePing, JdbcPing, TcpPing
from pollux.logs import event
from pollux.wire.core.datagram import MAXIMUM_DATAGRAM

if TYPE_CHECKING:
    from pollux.config.jgroups import Finding

logger = logging.getLogger("pollux.cluster")

#: Announcements that are looked at in one round; seconds for a connection to a member.
_MOST, _LIMIT = 200, 2.0
_SIZE = struct.Struct("<H")
#: Bytes that tell channels apart.
_CHANNEL = 8
_SAFE = re.compile(r"[^A-Za-z0-9._-]")


class Exchange(ABC):
    """A place where members leave what they announce, and read what others have left."""

    @abstractmethod
    async def put(self, member: str, data: bytes) -> None:
        """Leave an announcement in the place of the one before. Raises OSError."""

    @abstractmethod
    async def get(self) -> list[bytes]:
        """Return what members have left, one's own too. Raises OSError."""

    async def tell(self) -> None:  # noqa: B027  (where others find it, there is nothing to do)
        """Have others know what was left last, where they are not to find it themselves any more."""

    @abstractmethod
    async def close(self) -> None:
        """Hold nothing open any more."""


class FileExchange(Exchange):
    """A file for each member, in a directory that all of them see (FILE_PING)."""

    def __init__(self, finding: FilePing, channel: str) -> None:
        self._directory = Path(finding.location) / _SAFE.sub("_", channel)

    async def put(self, member: str, data: bytes) -> None:
        """Replace this member's file."""
        await asyncio.to_thread(self._put, self._directory / f"{_SAFE.sub('_', member)}.pollux", data)

    def _put(self, path: Path, data: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_bytes(data)
        beside.replace(path)

    async def get(self) -> list[bytes]:
        """Read all files."""
        return await asyncio.to_thread(self._get)

    def _get(self) -> list[bytes]:
        found = []
        for path in sorted(self._directory.glob("*.pollux"))[:_MOST]:
            with suppress(OSError), path.open("rb") as file:
                found.append(file.read(MAXIMUM_DATAGRAM + 1))
        return found

    async def close(self) -> None:
        """Nothing is open: each file is read as a whole."""


class SqlExchange(Exchange):
    """A row for each member in the table ``pollux_ping`` (JDBC_PING)."""

    def __init__(self, finding: JdbcPing, channel: str) -> None:
        try:
            import sqlalchemy
        except ImportError as error:
            raise DiscoveryError(
                f"JDBC_PING: the package {error.name} is missing: install pollux-broker[database]"
            ) from error
        self._sql: Any = sqlalchemy
        self._engine = sqlalchemy.create_engine(finding.url, pool_pre_ping=True)
        self._channel = channel
        self._table = sqlalchemy.Table(
            "pollux_ping",
            sqlalchemy.MetaData(),
            sqlalchemy.Column("channel", sqlalchemy.String(200), primary_key=True),
            sqlalchemy.Column("member", sqlalchemy.String(255), primary_key=True),
            sqlalchemy.Column("said", sqlalchemy.LargeBinary),
        )

    async def put(self, member: str, data: bytes) -> None:
        """Replace this member's row."""
        await asyncio.to_thread(self._do, self._put, member, data)

    async def get(self) -> list[bytes]:
        """Read all rows of the channel."""
        found: list[bytes] = await asyncio.to_thread(self._do, self._get)
        return found

    def _do(self, work: Any, *given: object) -> Any:
        try:
            self._table.metadata.create_all(self._engine)
            with self._engine.begin() as connection:
                return work(connection, *given)
        except self._sql.exc.SQLAlchemyError as error:
            raise OSError(f"the database: {str(error.__cause__ or error)[:200]}") from error

    def _put(self, connection: Any, member: str, data: bytes) -> None:
        table = self._table
        mine = (table.c.channel == self._channel) & (table.c.member == member)
        connection.execute(table.delete().where(mine))
        connection.execute(table.insert().values(channel=self._channel, member=member, said=data))

    def _get(self, connection: Any) -> list[bytes]:
        table = self._table
        rows = connection.execute(self._sql.select(table.c.said).where(table.c.channel == self._channel).limit(_MOST))
        return [bytes(row[0]) for row in rows]

    async def close(self) -> None:
        """Close its connections."""
        await asyncio.to_thread(self._engine.dispose)


class TcpExchange(Exchange):
    """A port at each member, which the others ask (TCPPING)."""

    def __init__(self, finding: TcpPing, channel: str) -> None:
        self._finding = finding
        #: Before each announcement: members of two channels may name the same ports.
        self._channel = hashlib.sha256(channel.encode()).digest()[:_CHANNEL]
        self._mine = b""
        self._heard: list[bytes] = []
        self._server: asyncio.Server | None = None

    async def put(self, member: str, data: bytes) -> None:
        """Answer with this from now on; listen from the first time on."""
        del member
        self._mine = self._channel + data
        if self._server is None:
            finding = self._finding
            for port in range(finding.port, finding.port + finding.port_range + 1):
                try:
                    self._server = await asyncio.start_server(self._answer, finding.local or None, port)
                except OSError:
                    if port == finding.port + finding.port_range:
                        raise
                else:
                    return

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(_LIMIT):
                await self._talk(reader, writer)
        writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_SIZE.pack(len(self._mine)) + self._mine)
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        if _CHANNEL < size <= _CHANNEL + MAXIMUM_DATAGRAM and len(self._heard) < _MOST:
            said = await reader.readexactly(size)
            if said.startswith(self._channel):
                self._heard.append(said[_CHANNEL:])

    async def get(self) -> list[bytes]:
        """Ask all hosts; return what they said, and what was said here since."""
        await self.tell()
        found, self._heard = self._heard, []
        return found

    async def tell(self) -> None:
        """Connect to all hosts: either side says what it has to say."""
        finding = self._finding
        places = [(host, port + more) for host, port in finding.hosts for more in range(finding.port_range + 1)]
        await asyncio.gather(*(self._ask(host, port) for host, port in places))

    async def _ask(self, host: str, port: int) -> None:
        with suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(_LIMIT):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    await self._talk(reader, writer)
                finally:
                    writer.close()

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()


def make(finding: Finding, channel: str) -> Exchange:
    """Return what a JGroups file names. Raises DiscoveryError."""
    if isinstance(finding, FilePing):
        return FileExchange(finding, channel)
    if isinstance(finding, JdbcPing):
        return SqlExchange(finding, channel)
    return TcpExchange(finding, channel)


class ExchangeAnnouncer(Announcer):
    """Says in an exchange, again and again, where this broker is reached."""

    exchange: Exchange

    def open(self) -> None:
        """Nothing is open before something is said."""
        self._putting: set[asyncio.Task[None]] = set()
        self._last = b""
        self._order = asyncio.Lock()

    def stop(self) -> None:
        """Say that this broker is not reached any more, if it ever was, and then hold nothing open."""
        began = self._timer is not None
        super().stop()
        if began:
            self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        try:
            await asyncio.gather(*self._putting)
            await self.exchange.tell()
        finally:
            await self.exchange.close()

    def _send(self, data: bytes) -> None:
        self._last = data
        if len(self._putting) > 1:
            return  # one is put, where it may hang, and the next one puts what was said last
        task = asyncio.get_running_loop().create_task(self._put())
        self._putting.add(task)
        task.add_done_callback(self._putting.discard)

    async def _put(self) -> None:
        # Each is put in a thread: one that takes long must not come after the next one, which may be the farewell.
        async with self._order:
            try:
                await self.exchange.put(self._mine.member, self._last)
            except OSError as error:
                self._failed(error)
            else:
                self._problem = ""


class ExchangeDiscovered(Discovered):
    """The other members as they announce themselves in an exchange."""

    exchange: Exchange

    def start(self) -> None:
        """Look at what is announced from now on."""
        self._seen: set[bytes] = set()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        said = ""
        try:
            while True:
                try:
                    found = await self.exchange.get()
                    said = ""
                except OSError as error:
                    if str(error) != said:
                        said = str(error)
                        event(logger, logging.WARNING, "other members cannot be looked for", reason=said)
                    found = []
                for data in found:
                    # What a member left that is gone is still there, and was heard once.
                    if data not in self._seen:
                        self.datagram_received(data, ("exchange", 0))
                self._seen = set(found) | (self._seen if not found else set())
                await asyncio.sleep(self._period)
        finally:
            await self.exchange.close()
