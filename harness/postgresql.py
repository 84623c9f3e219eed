"""A PostgreSQL server of the tests' own: in a temporary directory, on a socket there, without a network."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What tools/setup_environment.py takes out of Debian's packages where the server is not installed.
UNPACKED = Path(__file__).resolve().parents[1] / ".pollux" / "postgresql"
PLACES = (Path("/usr/lib/postgresql"), UNPACKED / "usr/lib/postgresql")

STORE = """<store><database-store><jdbc-connection-url>{url}</jdbc-connection-url><jdbc-user>pollux</jdbc-user>
  <message-table-name>{prefix}MESSAGES</message-table-name><bindings-table-name>{prefix}BINDINGS</bindings-table-name>
  <large-message-table-name>{prefix}LARGE_MESSAGES</large-message-table-name>
  <page-store-table-name>{prefix}PAGE_STORE</page-store-table-name>
  <node-manager-store-table-name>{prefix}NODE_MANAGER_STORE</node-manager-store-table-name></database-store></store>"""


def programs() -> Path:
    """Return the directory of the newest server's programs. Raises FileNotFoundError."""
    found = [path for place in PLACES for path in place.glob("*/bin") if (path / "initdb").exists()]
    if not found:
        raise FileNotFoundError("PostgreSQL's server is missing: run tools/setup_environment.py --tests")
    return max(found, key=lambda path: int(path.parent.name))


class Server:
    """One cluster. ``start`` and ``stop`` may be called again and again."""

    def __init__(
        self, directory: Path, *, durable: bool = False, of: Server | None = None, port: int | None = None
    ) -> None:
        """`durable`: what it confirms outlives a power cut, as in production and for benchmarks.

        `of`: it is a standby of that server, which has to run. `port`: it is reached at that port of loopback, too.
        """
        self.directory = directory
        self._port = port
        self._durable = durable
        self._bin = programs()
        libraries = ":".join(str(path) for path in UNPACKED.glob("usr/lib/*-linux-*"))
        self._libraries = {"LD_LIBRARY_PATH": libraries} if self._bin.is_relative_to(UNPACKED) else {}
        #: The server refuses root.
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(directory, account.pw_uid, account.pw_gid)
        data = directory / "data"
        if of is None:
            self._run("initdb", "-D", data, "-U", "pollux", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        else:
            self._run("pg_basebackup", "-D", data, "-h", of.directory, "-U", "pollux", "-R", "--no-sync", "-c", "fast")

    def _run(self, program: str, *arguments: str | Path, check: bool = True) -> None:
        with tempfile.TemporaryFile() as output:  # the server keeps it open: a pipe would be waited for
            done = subprocess.run(
                [self._bin / program, *arguments],
                cwd=self.directory,
                env={"PATH": os.environ.get("PATH", ""), "LANG": "C", "TZ": "UTC"} | self._libraries,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                user=self._user,
                extra_groups=[] if self._user is not None else None,
            )
            output.seek(0)
            if check and done.returncode:
                raise RuntimeError(f"{program}: {output.read().decode()}")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        # No test cuts the power of this machine: what the system was given outlives a killed server.
        where = "" if self._port is None else "127.0.0.1"
        options = (
            f"-c port={self._port or 5432} -c listen_addresses='{where}' -c unix_socket_directories={self.directory}"
        )
        options += "" if self._durable else " -c fsync=off"
        log = self.directory / "log"
        self._run("pg_ctl", "-D", self.directory / "data", "-o", options, "-l", log, "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it, as a power cut would or as asked."""
        self._run("pg_ctl", "-D", self.directory / "data", "-m", mode, "-w", "stop", check=False)

    def promote(self) -> None:
        """Have a standby be the server that is written to."""
        self._run("pg_ctl", "-D", self.directory / "data", "-w", "promote")

    @property
    def pid(self) -> int:
        """Return the process id of the server."""
        return int((self.directory / "data/postmaster.pid").read_text().split()[0])

    def create(self, database: str) -> str:
        """Make an empty database, and return its name."""
        self.sql(f"CREATE DATABASE {database} TEMPLATE template0")
        return database

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Carry out a statement as psql does; returns its rows."""
        where = ("-h", str(self.directory), "-p", str(self._port or 5432), "-U", "pollux", "-d", database)
        command = [str(self._bin / "psql"), *where, "-AtXq", "-c", statement]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        return done.stdout.strip()

    def url(self, database: str = "postgres") -> str:
        """Return SQLAlchemy's URL of a database."""
        return f"postgresql+psycopg://pollux@/{database}?host={self.directory}"

    def jdbc(self, database: str = "postgres") -> str:
        """Return the URL that broker.xml has."""
        if self._port is not None:
            return f"jdbc:postgresql://127.0.0.1:{self._port}/{database}"
        return f"jdbc:postgresql:{database}?host={self.directory}"

    def store(self, database: str = "postgres", prefix: str = "") -> str:
        """Return the element of broker.xml for a store in a database; its tables' names begin with ``prefix``."""
        return STORE.format(url=self.jdbc(database), prefix=prefix)


@contextmanager
def running(
    place: Path | None = None, *, durable: bool = False, of: Server | None = None, port: int | None = None
) -> Iterator[Server]:
    """Yield a server that answers, in a directory in `place`, a standby if it is `of` one; it is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="pollux-pg-", dir=place))
    directory.chmod(0o755)
    try:
        server = Server(directory, durable=durable, of=of, port=port)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
