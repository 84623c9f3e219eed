"""`make demo-cluster`, as a newcomer runs it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from harness.bundle import ROOT

pytestmark = pytest.mark.timeout(300)


def test_the_demo_of_a_cluster_shows_its_links_while_a_node_is_gone_and_loses_nothing() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "cluster.py")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"the link to node2 stands; 0 messages wait", done.stdout), done.stdout
    # How many of them were on their way when it was killed is another number each time.
    assert re.search(r"the link to node3 does not stand \(.+\); [\d,]+ messages wait", done.stdout), done.stdout
    assert re.search(r"wait in its own queue; consumers there: \d", done.stdout), done.stdout
    assert "3,000 sent, 3,000 received, 0 lost" in done.stdout
