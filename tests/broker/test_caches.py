"""A cache that is full."""

from __future__ import annotations

from pollux.caches import make_room


def test_the_oldest_few_are_forgotten_and_no_more() -> None:
    """Breaks when a full cache is emptied at once, as very many entries hold everybody up, or grows for ever."""
    cache: dict[int, int] = {}
    for number in range(1000):
        make_room(cache, 100)
        cache[number] = number
        assert min(len(cache), number + 1) in (*range(84, 101), number + 1)
    assert min(cache) >= 900
    assert max(cache) == 999


def test_a_cache_of_one_entry() -> None:
    cache = {1: 1}
    make_room(cache, 1)
    assert cache == {}
