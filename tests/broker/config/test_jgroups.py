"""JGroups files: three ways to find members are provided, everything else is refused by name with a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.config.jgroups import FilePing, Finding, JdbcPing, JGroupsError, TcpPing, read

if TYPE_CHECKING:
    from pathlib import Path


def found(tmp_path: Path, *elements: str) -> Finding:
    path = tmp_path / "jgroups.xml"
    path.write_text(f'<config xmlns="urn:org:jgroups">{"".join(elements)}<MERGE3/><pbcast.NAKACK2/></config>')
    return read(path, {"hosts": "c[7802]"})


def test_tcpping_with_its_transport(tmp_path: Path) -> None:
    transport = '<TCP bind_addr="127.0.0.1" bind_port="7801"/>'
    finding = found(tmp_path, transport, '<TCPPING initial_hosts="a[7800], b.example[7801],${hosts}" port_range="2"/>')
    assert finding == TcpPing((("a", 7800), ("b.example", 7801), ("c", 7802)), "127.0.0.1", 7801, 2)
    defaults = found(tmp_path, '<TCP bind_addr="SITE_LOCAL"/>', '<TCPPING initial_hosts="${nobody:a[1]}"/>')
    assert defaults == TcpPing((("a", 1),), "", 7800, 1)


def test_file_ping(tmp_path: Path) -> None:
    assert found(tmp_path, '<UDP/><FILE_PING location="/shared/ping"/>') == FilePing("/shared/ping")


def test_jdbc_ping_shows_no_password(tmp_path: Path) -> None:
    url = 'connection_url="jdbc:postgresql://db/pings" connection_username="u" connection_password="secret"'
    finding = found(tmp_path, f"<TCP/><JDBC_PING {url} connection_driver='org.postgresql.Driver'/>")
    assert isinstance(finding, JdbcPing)
    assert finding.url == "postgresql+psycopg://u:secret@/pings?host=db&port=5432"
    assert "secret" not in repr(finding)


@pytest.mark.parametrize(
    ("elements", "words"),
    [
        ("<TCP/><FD_SOCK/>", "nothing in it finds members: add <TCPPING>, <FILE_PING> or <JDBC_PING>"),
        ("<UDP/><PING/>", "<PING> is not supported: write group-address and group-port"),
        ("<TCP/><MPING/>", "<MPING> is not supported: write group-address"),
        ("<TCP/><TCPGOSSIP/>", "<TCPGOSSIP> is not supported: Pollux provides"),
        ("<TCP/><DNS_PING/>", "<DNS_PING> is not supported: Pollux provides"),
        ("<TCP/><S3_PING/>", "<S3_PING> is not supported"),
        ("<TUNNEL/><TCPPING initial_hosts='a[1]'/>", "<TUNNEL> is not supported: write <TCP>"),
        ("<TCPPING initial_hosts='a[1]'/><FILE_PING location='/x'/>", "both find members"),
        ("<TCPPING/>", "needs initial_hosts"),
        ("<TCPPING initial_hosts='a:1'/>", "'a:1' is not of the form host[port]"),
        ("<TCPPING initial_hosts='a[70000]'/>", "is not of the form host[port]"),
        ("<TCP bind_port='x'/><TCPPING initial_hosts='a[1]'/>", "bind_port is 'x'"),
        ("<TCPPING initial_hosts='${nobody}'/>", "initial_hosts of <TCPPING>: property 'nobody'"),
        ("<FILE_PING/>", "needs location"),
        ("<JDBC_PING connection_url='jdbc:mysql://x'/>", "<JDBC_PING>: connection_url: mysql is not supported"),
    ],
)
def test_what_is_not_provided_is_refused_by_name(tmp_path: Path, elements: str, words: str) -> None:
    with pytest.raises(JGroupsError) as caught:
        found(tmp_path, elements)
    assert words in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(JGroupsError, match=r"missing\.xml"):
        read(tmp_path / "missing.xml", {})
    (tmp_path / "other.xml").write_text("<configuration/>")
    with pytest.raises(JGroupsError, match="begins with <config>"):
        read(tmp_path / "other.xml", {})
