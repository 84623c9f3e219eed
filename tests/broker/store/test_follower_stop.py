"""A follower that lags behind when its broker takes over hands on what it has folded so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.store import contents, message_of, opened, segments, settings_in, stable
from pollux.store import recovery
from pollux.store.follower import Follower

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.recovered import Damage


@pytest.mark.parametrize("after", [1, 3])
async def test_recovery_goes_on_from_where_it_stopped(
    tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_in(tmp_path)
    sent = []
    async with opened(settings, crash=True) as one:
        for number in range(400):
            message = message_of(one.storage, bytes(1000))
            one.storage.append_message(message, [1 + number % 3])
            sent.append(message.id)
            if number % 10 == 0:
                await stable(one.storage)
        one.storage.append_acks(1, sent[:30:3])
        await stable(one.storage)
    assert len(segments(settings)) > 5
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    settle, calls = recovery.settle_segment, 0

    def then_stop(*values: object, **named: object) -> list[Damage]:
        nonlocal calls
        calls += 1
        if calls == after:
            follower.stop()
        return settle(*values, **named)  # type: ignore[arg-type]  # passed on

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "settle_segment", then_stop)
        follower.poll()
    assert calls == after
    folded = follower.records
    assert folded > 0
    async with opened(settings, crash=True, follower=follower) as two:
        assert two.recovered.damage == []
        found = contents(two.recovered)
        replayed = two.recovered.replayed_records
    assert found == {1: sent[30::3], 2: sent[1::3], 3: sent[2::3]}
    async with opened(settings) as three:
        assert contents(three.recovered) == found
        assert three.recovered.replayed_records > replayed
