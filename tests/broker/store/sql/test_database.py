"""Transactions of a store's database: the epoch that each proves, and answers that were lost."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import event, text

from harness.databases import DATABASES
from harness.postgresql import running
from pollux.store.files import make_directories, names_in, read_all, replace_file, write_all
from pollux.store.recovery import SegmentFile, is_empty
from pollux.store.sql.database import Database, DatabaseError, Target
from pollux.store.sql.files import SqlFiles
from pollux.store.sql.tables import TableNames

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

ROOT = Path("/store")
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
#: For what comes by itself, seconds.
SOON = 30


def add(database: Database, name: str, data: bytes = b"data") -> None:
    files = SqlFiles(database, ROOT)
    fd = files.open(ROOT / name, NEW)
    write_all(files, fd, data, 0, sync=True)
    files.close(fd)


def content(database: Database, name: str) -> bytes:
    return bytes(SqlFiles(database, ROOT).view(ROOT / name))


@pytest.fixture(params=DATABASES)
def two(request: pytest.FixtureRequest, databases: Callable[..., Database]) -> tuple[Database, Database]:
    """One database as two processes have it."""
    first = databases(request.param)
    return first, databases(first.target)


def test_a_life_that_is_over_changes_nothing_any_more(two: tuple[Database, Database]) -> None:
    old, new = two
    old.begin_life()
    files = SqlFiles(old, ROOT)
    fd = files.open(ROOT / "a", NEW)
    write_all(files, fd, b"first", 0, sync=True)
    new.begin_life()
    changes: list[Callable[[], Any]] = [
        lambda: files.write(fd, b"late", 0, sync=True),
        lambda: files.open(ROOT / "b", NEW),
        lambda: files.unlink(ROOT / "a"),
        lambda: files.rename(ROOT / "a", ROOT / "b"),
        lambda: files.truncate(fd, 1),
        lambda: files.make_directory(ROOT / "c"),
    ]
    for change in changes:
        with pytest.raises(OSError, match="epoch 1 is over, the store is at epoch 2") as caught:
            change()
        assert caught.value.errno == errno.EIO
    assert names_in(SqlFiles(new, ROOT), ROOT) == ["a"]
    assert content(new, "a") == b"first"


def test_what_changes_nothing_takes_no_transaction(two: tuple[Database, Database]) -> None:
    two[0].begin_life()
    files = SqlFiles(two[0], ROOT)
    begun: list[object] = []
    add(two[0], "a")
    event.listen(two[0]._engine, "commit", begun.append)
    files.unlink(ROOT / "b")
    files.unlink(ROOT / "nowhere" / "b")
    files.close(files.open(ROOT / "a", os.O_RDWR | os.O_CREAT))
    assert not begun
    files.unlink(ROOT / "a")
    assert len(begun) == 1
    fd = files.open(ROOT / "c", NEW)
    files.fill(fd, 100)
    assert len(begun) == 2
    write_all(files, fd, b"header", 0, sync=True)
    assert len(begun) == 3
    assert SqlFiles(two[1], ROOT).status(ROOT / "c").size == 100
    files.unlink(ROOT / "c")
    files.close(fd)
    assert not names_in(files, ROOT)


def test_a_piece_is_overwritten_by_one_that_is_just_as_long(two: tuple[Database, Database]) -> None:
    """As the heartbeat is, again and again: one statement, and one piece."""
    two[0].begin_life()
    files = SqlFiles(two[0], ROOT)
    fd = files.open(ROOT / "a", NEW)
    write_all(files, fd, b"first!", 0, sync=True)
    changes: list[str] = []
    event.listen(two[0]._engine, "after_cursor_execute", lambda *values: changes.append(values[2].split()[0]))
    write_all(files, fd, b"second", 0, sync=True)
    assert changes[-1] == "UPDATE"
    assert not {"INSERT", "DELETE"} & set(changes)
    assert content(two[1], "a") == b"second"
    write_all(files, fd, b"3", 0, sync=True)
    write_all(files, fd, b"longer than it was", 0, sync=True)
    assert content(two[1], "a") == b"longer than it was"
    files.close(fd)


def test_a_page_that_has_its_size_from_the_start_is_written_as_a_journal_is(two: tuple[Database, Database]) -> None:
    """Zeros at its end are no piece, so that nothing is looked for that a batch would take the place of."""
    two[0].begin_life()
    files = SqlFiles(two[0], ROOT)
    fd = files.open(ROOT / "a", NEW)
    write_all(files, fd, b"\0", 999, sync=True)
    assert files.used(fd) == 0
    statements: list[str] = []
    event.listen(two[0]._engine, "after_cursor_execute", lambda *values: statements.append(values[2].split()[0]))
    write_all(files, fd, b"first", 0, sync=True)
    write_all(files, fd, b"\0second", 5, sync=True)
    assert [one for one in statements if one in ("INSERT", "UPDATE", "DELETE")] == ["INSERT", "INSERT"]
    write_all(files, fd, b"\0\0", 3, sync=True)
    assert content(two[1], "a") == b"fir\0\0\0second" + bytes(988)
    files.close(fd)


def test_who_has_no_life_reads_only(two: tuple[Database, Database]) -> None:
    two[0].begin_life()
    add(two[0], "a")
    assert content(two[1], "a") == b"data"
    with pytest.raises(OSError, match="reading only"):
        add(two[1], "b")


def test_a_write_that_began_before_a_takeover_is_seen_by_it(two: tuple[Database, Database]) -> None:
    """The takeover waits for a transaction that has proven its epoch, and sees what that wrote."""
    old, new = two
    old.begin_life()
    proven, go_on, taken = threading.Event(), threading.Event(), threading.Event()
    table = old.tables.files

    def proves(*values: Any) -> None:
        if "epoch" in values[2] and values[2].startswith(("SELECT", "WITH")):
            proven.set()
            assert go_on.wait(SOON)

    def late(connection: Connection) -> None:
        connection.execute(table.insert().values(directory="", name="late", is_directory=False, size=0))

    def take_over() -> None:
        new.begin_life()
        taken.set()

    threads = [threading.Thread(target=lambda: old.write(late)), threading.Thread(target=take_over)]
    event.listen(old._engine, "after_cursor_execute", proves)
    threads[0].start()
    assert proven.wait(SOON)
    threads[1].start()
    assert not taken.wait(0.3)
    go_on.set()
    assert taken.wait(SOON)
    for thread in threads:
        thread.join()
    assert names_in(SqlFiles(new, ROOT), ROOT) == ["late"]


@pytest.mark.parametrize("when", ["open", "size"])
def test_a_file_that_another_process_replaces_while_it_is_read_is_not_missing(
    two: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A member that found no state file would write its own, and what the other one asked for would be gone."""
    ours, theirs = (SqlFiles(each, ROOT) for each in two)
    path = ROOT / "node" / "state.json"
    make_directories(theirs, path.parent)
    replace_file(theirs, path, b"first")
    step: Callable[..., Any] = getattr(ours, when)

    def overtaken(*values: Any) -> Any:
        monkeypatch.setattr(ours, when, step)
        found = step(*values)
        meanwhile()
        return found

    monkeypatch.setattr(ours, when, overtaken)
    meanwhile: Callable[[], None] = partial(replace_file, theirs, path, b"second")
    assert read_all(path, ours) == b"second"
    monkeypatch.setattr(ours, when, overtaken)
    meanwhile = partial(theirs.unlink, path)
    with pytest.raises(FileNotFoundError):
        read_all(path, ours)


def test_a_life_needs_its_proof(two: tuple[Database, Database]) -> None:
    two[0].begin_life()
    with pytest.raises(OSError, match="another process has the store"):
        two[1].begin_life(lambda _: False)
    add(two[0], "a")  # nothing was raised


def test_tables_of_a_newer_version_are_refused(two: tuple[Database, Database]) -> None:
    store = two[0].tables.store
    two[0].change(lambda connection: connection.execute(store.update().values(format=99)))
    with pytest.raises(DatabaseError, match="format 99, this Pollux knows up to 1; update it"):
        two[1].prepare()


def test_tables_of_another_store_are_refused(
    two: tuple[Database, Database], databases: Callable[..., Database]
) -> None:
    target = two[0].target
    with pytest.raises(DatabaseError, match="belongs to a store with the tables messages bindings"):
        databases(Target(target.url, TableNames(messages="others")))


def test_a_password_is_in_no_error_and_no_representation(tmp_path: Path) -> None:
    target = Target(f"postgresql+psycopg://pollux:secret@/none?host={tmp_path}", timeout=0.2)
    database = Database(target)
    with pytest.raises(OSError, match="the database says") as caught:
        database.prepare()
    database.close()
    assert "secret" not in f"{caught.value} {caught.value!r} {target!r} {database.where}"


class LosesAnswers:
    """Ends the connection at the next commit, before or after the server has done it."""

    def __init__(self, database: Database, *, done: bool) -> None:
        self._dialect: Any = vars(database._engine)["dialect"]
        self._real = self._dialect.do_commit
        self._done = done
        self.lost = 0
        self._dialect.do_commit = self._commit

    def _commit(self, connection: Any) -> None:
        del self._dialect.do_commit
        if self._done:
            self._real(connection)
        self.lost += 1
        connection.driver_connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.processes
def test_a_write_whose_answer_was_lost_is_done_once(
    databases: Callable[..., Database], done: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pollux.store")
    database = databases("postgresql")
    database.begin_life()
    add(database, "before")
    counts = 0

    def count(connection: Connection) -> None:
        nonlocal counts
        counts += 1
        connection.execute(
            database.tables.files.insert().values(directory="", name=f"n{counts}", is_directory=False, size=0)
        )

    loses = LosesAnswers(database, done=done)
    database.write(count)
    assert loses.lost == 1
    assert caplog.messages == [
        f"{database.where}: an answer was lost: the commit {'was done' if done else 'is repeated'}"
    ]
    assert counts == (1 if done else 2)
    assert sorted(names_in(SqlFiles(database, ROOT), ROOT)) == ["before", f"n{counts}"]


@pytest.mark.processes
def test_a_file_that_is_made_while_the_answer_is_lost_is_there_once(databases: Callable[..., Database]) -> None:
    database = databases("postgresql")
    database.begin_life()
    add(database, "before")
    LosesAnswers(database, done=True)
    add(database, "a")  # asked again without a look it would be there already
    LosesAnswers(database, done=True)
    SqlFiles(database, ROOT).rename(ROOT / "a", ROOT / "b")
    assert content(database, "b") == b"data"


@pytest.mark.processes
def test_a_server_that_is_killed_and_started_again_is_found_again() -> None:
    with running() as server:
        database = Database(Target(server.url(), timeout=SOON))
        database.prepare()
        database.begin_life()
        files = SqlFiles(database, ROOT)
        fd = files.open(ROOT / "a", NEW)
        write_all(files, fd, b"before", 0, sync=True)
        server.stop()
        later = threading.Thread(target=server.start)
        later.start()
        write_all(files, fd, b"behind", 6, sync=True)
        later.join()
        assert files.read(fd, 100, 0) == b"beforebehind"
        database.close()


@pytest.mark.processes
def test_a_session_that_the_server_ended_within_a_transaction_is_begun_anew(databases: Callable[..., Database]) -> None:
    database = databases("postgresql")
    database.begin_life()
    add(database, "before")
    ended = 0

    def work(connection: Connection) -> None:
        nonlocal ended
        if not ended:
            ended = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            database.look(lambda other: other.execute(text(f"SELECT pg_terminate_backend({ended})")))
        connection.execute(database.tables.files.insert().values(directory="", name="n", is_directory=False, size=0))

    database.write(work)
    assert sorted(names_in(SqlFiles(database, ROOT), ROOT)) == ["before", "n"]


@pytest.mark.processes
def test_a_connection_that_is_in_use_at_the_end_ends_with_its_use(databases: Callable[..., Database]) -> None:
    """Breaks when it goes back to connections that nobody has any more: the server keeps its session."""
    database = databases("postgresql")
    other = databases(database.target)
    in_use, go = threading.Event(), threading.Event()
    pids: list[int] = []

    def work(connection: Connection) -> None:
        pids.append(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
        in_use.set()
        assert go.wait(SOON)

    thread = threading.Thread(target=database.look, args=(work,))
    thread.start()
    assert in_use.wait(SOON)
    database.close()
    go.set()
    thread.join(SOON)
    database.look(work)  # somebody is late
    there = text("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(:pids)")
    deadline = time.monotonic() + SOON
    while other.look(lambda connection: connection.execute(there, {"pids": pids}).scalar_one()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_of_zeros_that_nobody_wrote_nothing_is_read(two: tuple[Database, Database]) -> None:
    """A takeover would wait for megabytes of them: the segments that are ready for the journal's next records."""
    writes, reads = two
    writes.begin_life()
    mine, theirs = SqlFiles(writes, ROOT), SqlFiles(reads, ROOT)
    path = ROOT / "pollux-00000001-0000000001.segment"
    fd = mine.open(path, NEW)
    mine.fill(fd, 10 << 20)
    write_all(mine, fd, b"header", 0, sync=True)
    lengths: list[int] = []
    asked = theirs.read
    theirs.read = lambda fd, length, offset: lengths.append(length) or asked(fd, length, offset)  # type: ignore[method-assign, func-returns-value]
    segment = SegmentFile(path, 1, 1, 10 << 20, None, files=theirs)
    assert is_empty(segment)
    assert not lengths
    write_all(mine, fd, b"record", 1000, sync=True)
    assert not is_empty(SegmentFile(path, 1, 1, 10 << 20, None, files=theirs))
    assert sum(lengths) < 2000
