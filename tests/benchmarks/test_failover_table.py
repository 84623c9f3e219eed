"""The failover benchmark decides without a broker: when it kills, its statistics, its table, peers' settings."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from benchmarks import failover_full, failover_pairs, peers
from benchmarks.failover_table import COLUMNS, Circumstances, delays, merged, row, rows_of
from benchmarks.report import markdown, read_section
from pollux.client.retry import UNLIMITED
from pollux.client.url import parse_url

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ABOUT = Circumstances("Pollux", "AMQP", 1_000_000, 0.34, "2026-11-22")


def test_kills_fall_evenly_over_the_time_between_looks_at_the_lock() -> None:
    found = delays(10, 10.0)
    assert sorted(found) == pytest.approx([0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5])
    assert found != sorted(found), "not in order: what grows over the trials would look like a later kill"
    assert found == delays(10, 10.0), "the same again"
    assert delays(3, 0.0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("times", "figures"),
    [
        ([7.4], ("1", "7", "7", "7")),
        ([30, 10, 20], ("3", "20", "30", "30")),
        ([1000, 2000], ("2", "1,500", "2,000", "2,000")),
        (range(200, 0, -1), ("200", "100", "199", "200")),
    ],
)
def test_a_row(times: Sequence[float], figures: tuple[str, ...]) -> None:
    assert row(ABOUT, times) == ("Pollux", "AMQP", "1,000,000", *figures, "0.3", "2026-11-22")


def test_what_was_written_is_read_again() -> None:
    rows = [row(ABOUT, [1, 2, 3]), row(ABOUT._replace(broker="ActiveMQ, default", protocol="STOMP"), [5000])]
    assert rows_of(markdown(COLUMNS, rows)) == rows
    assert rows_of("") == []


def test_a_table_with_other_columns_is_not_rewritten() -> None:
    with pytest.raises(ValueError, match=r"the table has the columns broker, trials, not broker, protocol"):
        rows_of("| broker | trials |\n| --- | --- |\n| Pollux | 50 |")


def test_a_run_replaces_only_what_it_measured() -> None:
    idle = row(ABOUT, [1])
    empty = row(ABOUT._replace(messages=0), [2])
    other = row(ABOUT._replace(broker="ActiveMQ, default"), [3])
    again = row(ABOUT._replace(load=9.0, day="2026-11-23"), [4, 5])
    assert merged([idle, empty], [again, other]) == [again, empty, other]


def test_the_report_can_be_added_to() -> None:
    """The table in docs/benchmarks.md is one that the next --write keeps."""
    rows = rows_of(read_section("failover"))
    assert {each[:3] for each in rows} >= {("Pollux", "AMQP", "0"), ("Pollux", "AMQP", "1,000,000")}
    assert all(len(each) == len(COLUMNS) for each in rows)


def test_activemq_as_it_is_by_default_is_told_nothing(tmp_path: Path) -> None:
    store = ET.fromstring(peers.kahadb(tmp_path))  # noqa: S314  (our own text)
    assert store.attrib == {"directory": str(tmp_path)}
    assert list(store) == []


@pytest.mark.parametrize("kind", [failover_pairs.ActiveMQPair, failover_pairs.TunedActiveMQPair])
def test_both_activemqs_share_one_store(
    kind: type[failover_pairs.ActiveMQPair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[Sequence[str]] = []
    monkeypatch.setattr(peers, "spawn", lambda command, _directory: commands.append(command))
    pair = kind(tmp_path)
    for member in pair.members:
        member.spawn()
    files = [tmp_path / name / "conf" / "activemq.xml" for name in ("a", "b")]
    beans = [ET.parse(file) for file in files]  # noqa: S314  (our own text)
    space = "{http://activemq.apache.org/schema/core}"
    stores = [each.findall(f".//{space}kahaDB") for each in beans]
    assert [store.get("directory") for (store,) in stores] == [str(tmp_path / "shared")] * 2
    looks = [each.findall(f".//{space}shared-file-locker") for each in beans]
    if kind.acquire is None:
        assert looks == [[], []]
        assert kind.interval == failover_pairs.DEFAULT_ACQUIRE
    else:
        assert [one.get("lockAcquireSleepInterval") for (one,) in looks] == [str(kind.acquire)] * 2
        assert kind.interval == kind.acquire / 1000
    assert [store.get("lockKeepAlivePeriod") for (store,) in stores] == [kind.keep_alive and str(kind.keep_alive)] * 2
    uris = [each.find(f".//{space}transportConnector") for each in beans]
    ports = [member.port for member in pair.members]
    assert [uri is not None and uri.get("uri") for uri in uris] == [f"stomp+nio://127.0.0.1:{port}" for port in ports]
    assert [command[-1] for command in commands] == [f"xbean:file:{file}" for file in files]
    target = parse_url(pair.url)
    assert [each.port for each in target.endpoints] == ports
    assert target.options.reconnect_attempts == UNLIMITED
    assert target.options.retry.interval == failover_pairs.RETRY
    assert pair.destination("q") == "/queue/q"


def test_every_choice_can_be_measured() -> None:
    names = [make.name for _, make in failover_pairs.PAIRS.values()]
    assert len(set(names)) == len(names), "rows are told apart by the name"
    assert all(make.protocols for _, make in failover_pairs.PAIRS.values())


def test_a_row_at_full_load_tells_the_first_failovers_from_the_last() -> None:
    found = [failover_full.Failover(100 + number, 10, 80, 1000 * number, number % 7, 50_000) for number in range(30)]
    made = failover_full.row(ABOUT, found, drained=False)
    assert made == (
        *("Pollux", "AMQP", "1,000,000", "no", "30", "114", "129", "129", "104", "124", "29,000", "6", "50,000"),
        *("0.3", "2026-11-22"),
    )
    columns = failover_full.COLUMNS
    assert rows_of(markdown(columns, [made]), columns) == [made]
    drained = failover_full.row(ABOUT, found, drained=True)
    assert merged([made], [drained], failover_full.IDENTITY) == [made, drained]
    assert read_section("failover at full load") is not None


def test_what_a_broker_said_is_found_with_its_fields(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "2026-11-25T00:00:01.000Z INFO pollux.broker broker is live name=a messages=1\n"
        'a line of its own\n2026-11-25T00:00:02.500Z INFO pollux.broker broker is live name="a b" messages=7\n'
    )
    at, fields = failover_full.said(log, "broker is live", 1795564801.5)
    assert at == 1795564802.5
    assert fields == {"name": '"a b"', "messages": "7"}
