"""A connection that this broker began."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.cluster.connection.conftest import End
from pollux.cluster.link import Conversation, CoreHub
from pollux.cluster.link.core_link import CoreLink
from pollux.wire.core.peer import ClusterKey

KEY = ClusterKey("nodes", "castor and pollux")


@pytest.mark.parametrize(("silence", "said"), [(7.0, 7000), (None, 60_000)])
async def test_who_connects_says_after_what_silence_it_gives_up(silence: float | None, said: int) -> None:
    """Its own, as several cluster connections have one hub; else that of the hub."""
    loop = asyncio.get_running_loop()
    hub, other = (CoreHub(KEY, name=name, node_id=name.encode() * 16, timeout=60.0) for name in "ab")
    ends: tuple[Any, Any] = End(), End()
    link = CoreLink(hub, loop, silence)
    link.connection_made(ends[0])
    theirs = Conversation(other, ends[1], loop, initiator=False, on_ready=lambda _: None, on_end=lambda *_: None)
    ends[0].join(theirs)
    ends[1].join(link.conversation)
    async with asyncio.timeout(5):
        await link.ready
    assert theirs.peer is not None
    assert theirs.peer.timeout == said
    link.close("done")
    theirs.end("failed", "done")
