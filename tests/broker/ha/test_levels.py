"""A promoted broker takes out of its copy what levels leave out, and says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.sessions.office import Office
from pollux.config.address_settings import AddressFullPolicy
from pollux.ha.active_passive import levels
from pollux.ha.active_passive.levels import Dropped
from pollux.ha.active_passive.views import kept_view

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pollux.engine.post_office import PostOffice

#: Queue -> its level (None: it does not say), and how many messages it has; of `paged` most are in pages.
QUEUES = {
    "all": ("all", 3),
    "configuration": ("configuration", 2),
    "default": (None, 4),
    "empty": ("configuration", 0),
    "none": ("none", 5),
    "paged": ("all", 60),
}


@pytest.fixture
async def post(tmp_path: Path) -> AsyncIterator[PostOffice]:
    """A post office as it is opened on a copy."""
    office = Office(tmp_path)
    office.settings(
        "paged",
        max_size_bytes=20_000,
        page_size_bytes=10_000,
        max_read_page_bytes=20_000,
        address_full_policy=AddressFullPolicy.PAGE,
    )
    await office.open()
    for name, (level, count) in QUEUES.items():
        office.queue(name, durable=True, replicate=level)
        await office.send(*[b"x" * 1000] * count, address=name)
    await office.close()
    yield await office.open()
    await office.close()


def test_who_received_the_data_has_what_levels_leave(post: PostOffice) -> None:
    kept = levels.apply(post, "configuration", received=True)
    dropped = (
        Dropped("configuration", "configuration", 2),
        Dropped("default", "configuration", 4),
        Dropped("none", "none", 5),
    )
    assert kept == (5, 63, dropped)
    assert {queue.name: post.message_count(queue) for queue in post.space.queues} == {
        "all": 3,
        "configuration": 0,
        "default": 0,
        "empty": 0,
        "paged": 60,
    }


def test_who_served_with_it_before_has_everything(post: PostOffice) -> None:
    assert levels.apply(post, "none", received=False) == (6, 74, ())


def test_whoever_promotes_is_told(post: PostOffice) -> None:
    assert kept_view(None) == {"kept": None, "dropped": []}, "it does not serve yet"
    assert kept_view(levels.apply(post, "all", received=True)) == {
        "kept": {"queues": 5, "messages": 67},
        "dropped": [
            {"queue": "configuration", "level": "configuration", "messages": 2},
            {"queue": "none", "level": "none", "messages": 5},
        ],
    }
