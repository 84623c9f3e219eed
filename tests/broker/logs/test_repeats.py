"""Lines that repeat are counted: bounded in number and in memory, and nothing is lost without a number."""

from __future__ import annotations

import io
import logging
import re
from typing import TYPE_CHECKING

import pytest

from pollux import logs
from pollux.logs.repeats import FIRST, FIRST_OF_ALL, KINDS, WINDOW, Folding

if TYPE_CHECKING:
    from collections.abc import Iterator


class Log:
    """A handler with a filter, and the lines it wrote."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(logs.TextFormatter())
        self.folding = Folding(self.handler.emit, lambda: self.now)
        self.handler.addFilter(self.folding)

    def line(self, text: str, *values: object, name: str = "pollux.connection", **fields: object) -> None:
        record = logging.LogRecord(name, logging.INFO, "", 0, text, values, None)
        record.fields = fields
        self.handler.handle(record)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    @property
    def counted(self) -> int:
        """Lines written, and those that are told by number."""
        more = [int(found[1]) for found in re.finditer(r" \.\.\. (\d+) more like it", self.stream.getvalue())]
        return len(self.lines) - len(more) + sum(more)


@pytest.fixture
def log() -> Log:
    return Log()


def test_the_first_lines_are_written_at_once(log: Log) -> None:
    for number in range(FIRST):
        log.line("connection opened", source="192.0.2.7", connection=number)
    assert len(log.lines) == FIRST


def test_a_flood_is_a_few_lines_and_a_number(log: Log) -> None:
    for number in range(16_000):
        log.now += 0.0003
        log.line("log-in refused", source="192.0.2.7", user="ada", connection=number)
    assert len(log.lines) == FIRST
    log.now += WINDOW
    log.folding.flush()
    assert len(log.lines) == FIRST + 1
    assert log.counted == 16_000
    assert "in the last 10 s, the last: log-in refused" in log.lines[-1]
    assert "source=192.0.2.7" in log.lines[-1]
    assert "connection=15999" in log.lines[-1]


def test_a_kind_is_its_text_before_the_values_and_its_source(log: Log) -> None:
    for number in range(FIRST + 5):
        log.line("queue created name=%s", f"q{number}", name="pollux.addresses")
    log.line("queue deleted name=%s", "q1", name="pollux.addresses")
    log.line("connection opened", source="a")
    log.line("connection opened", source="b")
    assert len(log.lines) == FIRST + 3


def test_a_flood_from_everywhere_is_folded_too_and_memory_is_bounded(log: Log) -> None:
    for number in range(20_000):
        log.now += 0.0001
        log.line("connection refused", source=f"2001:db8::{number:x}")
        assert len(log.folding) <= KINDS
    log.folding.flush(everything=True)
    assert len(log.lines) <= FIRST_OF_ALL * (20_000 // KINDS + 2)
    assert log.counted == 20_000


def test_it_begins_anew_with_each_window(log: Log) -> None:
    for _ in range(3):
        for _ in range(FIRST + 1):
            log.line("connection opened", source="a")
        log.now += WINDOW
        log.line("other")
    assert log.counted == 3 * (FIRST + 2)
    assert len(log.lines) == 3 * (FIRST + 2)


@pytest.mark.parametrize("name", ["pollux.ha", "pollux.ha.lease", "pollux.mirror", "pollux.broker", "pollux.critical"])
def test_state_changes_are_never_folded(log: Log, name: str) -> None:
    for number in range(500):
        log.line("activation", name=name, to="live", epoch=number)
    assert len(log.lines) == 500


@pytest.fixture
def configured() -> Iterator[io.StringIO]:
    root, broker = logging.getLogger(), logging.getLogger("pollux")
    handlers, levels = list(root.handlers), (root.level, broker.level)
    stream = io.StringIO()
    logs.configure("INFO", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    broker.setLevel(levels[1])


def test_the_broker_s_log_is_folded(configured: io.StringIO) -> None:
    for _ in range(1000):
        logging.getLogger("pollux.mqtt").info("MQTT connection from %s is refused: %s", "192.0.2.7", "log-in")
    assert len(configured.getvalue().splitlines()) == FIRST
    logs.flush(everything=True)
    last = configured.getvalue().splitlines()[-1]
    assert "... 980 more like it in the last 10 s, the last: MQTT connection from 192.0.2.7 is refused: log-in" in last
