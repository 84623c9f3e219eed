"""The agent by the program that resource-agents has for it: with a stand-in for the broker, beside the cluster."""

from __future__ import annotations

import base64
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from lxml import etree

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["docker://passive-3"]
AGENT = "/usr/lib/ocf/resource.d/pollux/broker"
STAND_IN = Path(__file__).resolve().parents[3] / "tests/ansible/stand_in.sh"
#: Without pacemaker's own programs, which are in /usr/sbin: the cluster must not be told of this one. There is no
#: xmllint, so the metadata is held against its DTD here.
SCRIPT = r"""
set -e
place=$(mktemp --directory --tmpdir=/var/tmp)
trap 'rm -r "$place"' EXIT
chmod 755 "$place"
echo {program} | base64 --decode >"$place/pollux"
printf '#!/bin/sh\ncat >/dev/null\n' >"$place/xmllint"
chmod 755 "$place/pollux" "$place/xmllint"
echo '<configuration/>' >"$place/broker.xml"
PATH=$place:/usr/bin:/bin /usr/sbin/ocf-tester -n tester -o binary="$place/pollux" -o config="$place/broker.xml" \
    -o pidfile="$place/pid" -o log="$place/log" {agent}
"""


def test_ocf_tester_passes(host: Host) -> None:
    program = base64.b64encode(STAND_IN.read_bytes()).decode()
    done = host.run("sh -c %s", SCRIPT.format(program=program, agent=AGENT))
    assert done.rc == 0, done.stdout + done.stderr
    assert "broker passed all tests" in done.stdout
    assert "rc=" not in done.stdout


def test_the_metadata_is_what_the_dtd_of_agents_says(host: Host) -> None:
    dtd = etree.DTD(StringIO(host.file("/usr/share/resource-agents/ra-api-1.dtd").content_string))
    dtd.assertValid(etree.fromstring(host.check_output(f"{AGENT} meta-data").encode()))
