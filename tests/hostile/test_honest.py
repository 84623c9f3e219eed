"""Nobody attacks: honest clients of all protocols get on, and one that gets stuck is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import honest as clients

if TYPE_CHECKING:
    from harness.broker import BrokerProcess
    from harness.honest import Everybody


def test_they_get_on(honest: Everybody) -> None:
    honest.progress(50)


def test_a_broker_that_stands_still_is_noticed(
    attacked: BrokerProcess, honest: Everybody, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attacked.process is not None
    attacked.process.send_signal(19)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(clients, "LIMIT", 0.3)
            for client in honest.clients:
                with pytest.raises(AssertionError, match="is not served"):
                    client.progress(1000)
    finally:
        attacked.process.send_signal(18)
