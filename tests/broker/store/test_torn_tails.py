"""The end of a last write, torn: no damage, the same at every start, and never what a later life found valid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.store import contents, files_below, opened, segments, settings_in

from .test_inventory import paged, report_on, send

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_torn_tail_is_no_damage_after_a_restart_either(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        ids = await send(one.storage, 3)
        last = one.storage._journal.segment
        assert last is not None
        end = last.position
        await send(one.storage, 1)
    path = segments(settings)[0]
    with path.open("r+b") as stream:
        stream.seek(end + 200)
        stream.write(bytes(1000))
    for _ in range(2):
        report = report_on(settings)
        assert report.sound, report
        async with opened(settings, crash=True) as two:
            assert contents(two.recovered) == {1: ids}
    assert [str(one) for one in report_on(settings).damage if one.kind == "late-writes"] == []
    with path.open("r+b") as stream:
        stream.seek(end + 5000)
        stream.write(b"late")
    report = report_on(settings)
    assert report.sound
    assert [one.kind for one in report.damage] == ["late-writes"]


async def test_a_hole_in_the_last_write_is_the_same_at_every_start(tmp_path: Path) -> None:
    """Sectors of a write that nobody was promised arrive in any order: what is valid behind a hole counts."""
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        ids = await send(one.storage, 3)
        last = one.storage._journal.segment
        assert last is not None
        start = last.position
        more = await send(one.storage, 5)
    path = segments(settings)[0]
    with path.open("r+b") as stream:
        stream.seek(start + 1024)
        stream.write(bytes(512))
    seen = set()
    for _ in range(3):
        report = report_on(settings)
        assert report.sound, report.damage
        async with opened(settings, crash=True) as two:
            held = contents(two.recovered)[1]
            assert held[:3] == ids
            assert held[-1] == more[-1], "it is behind the hole"
            assert [damage.kind for damage in two.recovered.damage] == ["torn-tail"]
            seen.add(len(held))
    assert len(seen) == 1
    with path.open("r+b") as stream:
        stream.seek(start + 100)
        stream.write(b"\xff")
    assert not report_on(settings).sound, "a hole that grows later is damage"


async def test_a_flip_in_what_a_later_life_found_valid_is_no_torn_tail(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        await send(one.storage, 3)
        await paged(one.storage, 3)
    async with opened(settings, crash=True):
        pass
    for path in (segments(settings)[0], files_below(settings.paging_directory, "*.page")[0]):
        data = bytearray(path.read_bytes())
        data[len(bytes(data).rstrip(b"\0")) - 5] ^= 1
        path.write_bytes(data)
    assert not report_on(settings).sound
    async with opened(settings, crash=True) as two:
        assert [damage.kind for damage in two.recovered.damage] == ["corrupt", "corrupt"]
