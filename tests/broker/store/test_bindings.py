"""The bindings journal: the last value counts, across stops, damage and its own compaction."""

from __future__ import annotations

import errno
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from harness.disk_account import Account, materialise
from harness.lossy_disk import LossyDisk
from harness.store import NODE, FaultyFiles, opened, settings_in, stable
from pollux.errors import StoreError
from pollux.formats import records
from pollux.formats.records import RecordType
from pollux.formats.segments import FRAME_SIZE, HEADER_SIZE, DamagedRange, frame
from pollux.formats.segments import records as scan
from pollux.store import bindings
from pollux.store.bindings import Bindings, newest_file, read_bindings, read_newest
from pollux.store.files import FileOperations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.store.recovered import Damage

#: (key, size) of what is changed at once.
CHANGES = (("b", 2000), ("c", 5), ("d", 700), ("e", 5))
#: It ends with zeros, as what was not written does.
CONFIRMED = b"confirmed" * 100 + bytes(9)


async def test_values_are_kept_changed_and_deleted(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        one.storage.put("queue", "a", b"1")
        one.storage.put("queue", "b", b"2")
        one.storage.put("address", "a", b"")
        await stable(one.storage)
        one.storage.put("queue", "a", b"3")
        one.storage.put("queue", "b", None)
        one.storage.put("queue", "never", None)
        await stable(one.storage)
    for crash in (True, False, True):
        async with opened(settings, crash=crash) as two:
            assert two.recovered.bindings == {("queue", "a"): b"3", ("address", "a"): b""}
    assert len(list(settings.bindings_directory.iterdir())) == 1


async def test_the_file_replaces_itself_when_changes_outweigh_what_is_alive(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        for number in range(1200):
            one.storage.put("retained", f"topic{number % 3}", number.to_bytes(2, "big") * 5000)
            if number % 50 == 0:
                await stable(one.storage)
        await stable(one.storage)
        path = newest_file(settings.bindings_directory)
        assert path is not None
        assert path.stat().st_size < 6 << 20
        assert not path.name.endswith("0000000001.segment")
    async with opened(settings) as two:
        assert two.recovered.bindings == {
            ("retained", f"topic{number % 3}"): number.to_bytes(2, "big") * 5000 for number in (1197, 1198, 1199)
        }


@pytest.mark.parametrize("call", ["open", "fsync", "rename", "sync_directory", "unlink"])
async def test_a_replacement_that_finds_no_room_at_first_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(bindings, "_WASTE_FLOOR", 1000)
    settings, files = settings_in(tmp_path), FaultyFiles()
    async with opened(settings, crash=True, files=files) as one:
        first = newest_file(settings.bindings_directory)
        done = getattr(files, call)
        refused: list[object] = []

        def finds_room_at_last(*values: Any) -> Any:
            place = Path(f"/proc/self/fd/{values[0]}").readlink() if call == "fsync" else values[0]
            if "bindings" in str(place) and len(refused) < 3:
                refused.append(place)
                raise OSError(errno.ENOSPC, "No space left on device")
            return done(*values)

        monkeypatch.setattr(files, call, finds_room_at_last)
        for number in range(40):
            one.storage.put("k", "key", bytes([number]) * 100)
            await stable(one.storage)
            # Each of them, in the right file: a descriptor that was let go of twice is another file's by then.
            values, _, _ = read_newest(settings.bindings_directory, NODE, expected=True)
            assert values["k", "key"] == bytes([number]) * 100
        assert len(refused) == 3
        assert newest_file(settings.bindings_directory) != first
        assert one.failures == []
    async with opened(settings) as two:
        assert two.recovered.damage == []


@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    puts=st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.none() | st.binary(max_size=9)), max_size=30
    ),
    cut=st.integers(0, 400),
)
def test_any_cut_leaves_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[str, str, bytes | None]], cut: int
) -> None:
    directory = tmp_path_factory.mktemp("bindings")
    bindings = Bindings(directory, FileOperations(), node_id=NODE, epoch=1, salt=9)
    bindings.load(NODE)
    states: list[dict[tuple[str, str], bytes]] = [{}]
    for kind, key, value in puts:
        bindings.write([bindings.put(kind, key, value)])
        state = dict(states[-1])
        if value is None:
            state.pop((kind, key), None)
        else:
            state[kind, key] = value
        states.append(state)
    bindings.close()
    path = newest_file(directory)
    assert path is not None
    data = path.read_bytes()
    path.write_bytes(data[: 128 + cut] + bytes(max(0, len(data) - 128 - cut)))
    values, damage, _ = read_bindings(path, NODE)
    assert values in states
    assert {one.kind for one in damage} <= {"torn-tail"}


async def test_damage_in_the_middle_is_reported_and_the_file_kept(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        for number in range(5):
            one.storage.put("queue", str(number), b"value")
        await stable(one.storage)
    path = newest_file(settings.bindings_directory)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[data.index(b"2value")] ^= 1
    path.write_bytes(data)
    async with opened(settings) as two:
        assert set(two.recovered.bindings) == {("queue", key) for key in "0134"}
        assert [damage.kind for damage in two.recovered.damage] == ["corrupt"]
    assert list(settings.bindings_directory.glob("*.damaged"))


async def test_another_nodes_bindings_are_refused(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        one.storage.put("queue", "a", b"1")
        await stable(one.storage)
    for path in settings.journal_directory.iterdir():
        path.unlink()
    with pytest.raises(StoreError, match="belongs to node"):
        async with opened(settings_in(tmp_path, node_id=b"another-node-id-")):
            pass


def test_a_last_write_that_is_torn_anywhere_is_no_damage(tmp_path: Path) -> None:
    """Several changes are one write: a sector in its middle that did not arrive has valid records behind it.

    Wherever it begins in a sector: what stood there told that the write before was confirmed.
    """
    draw = random.Random(1)  # noqa: S311  (a reproducible test, no secret)
    seen = Counter(len(found) for place in range(484, 516, 2) for found in torn_at(tmp_path, place, draw))
    assert min(seen[0], seen[1], seen[2]) > 5, "damaged ranges in a file"


def torn_at(directory: Path, place: int, draw: random.Random) -> Iterator[list[Damage]]:
    """Yield what is reported of a write that begins at ``place`` in a sector, and some of whose sectors are missing."""
    root = directory / str(place)
    root.mkdir()
    bindings = Bindings(root, FileOperations(), node_id=NODE, epoch=1, salt=9)
    bindings.load(NODE)
    bindings.write([bindings.put("k", "a", CONFIRMED)])
    bindings.write([bindings.put("k", "b", bytes((place - bindings._position - 48) % 512))])
    path = newest_file(root)
    assert path is not None
    first = bindings._position - bindings._position % 512
    assert bindings._position % 512 == place % 512
    before = path.read_bytes()
    bindings.write([bindings.put("k", key, bytes([number]) * size) for number, (key, size) in enumerate(CHANGES, 1)])
    last = bindings._position
    bindings.close()
    after = path.read_bytes()
    for _ in range(30):
        data = bytearray(after)
        # Nobody waits for what stands behind it.
        data[last:] = before[last:]
        for sector in range(first, last, 512):
            if draw.random() < 0.3:
                data[sector : sector + 512] = before[sector : sector + 512]
        path.write_bytes(data)
        values, damage, _ = read_bindings(path, NODE)
        assert values["k", "a"] == CONFIRMED
        assert {one.kind for one in damage} <= {"torn-tail"}, f"at {place}: {damage}"
        yield damage


@pytest.mark.parametrize("parted", [0, 1, 13, 25])
def test_any_sectors_of_a_last_write_are_no_damage(tmp_path: Path, parted: int) -> None:
    """Its first record is where another was before: ``parted`` bytes of it in one sector, the rest in the next."""
    bindings = Bindings(tmp_path, FileOperations(), node_id=NODE, epoch=1, salt=9)
    bindings.load(NODE)
    before = HEADER_SIZE + 2 * len(frame(records.BATCH.pack(RecordType.BATCH, 0, 0, 0), 9))
    value = b"c" * ((-before - len(frame(records.put("k", "a", CONFIRMED), 9)) - parted) % 512) + CONFIRMED
    bindings.write([bindings.put("k", "a", value)])
    assert -bindings._position % 512 == parted
    path = newest_file(tmp_path)
    assert path is not None
    old = path.read_bytes()
    bindings.write([bindings.put("k", key, bytes([7]) * size) for key, size in CHANGES])
    bindings.close()
    new = path.read_bytes()[: bindings._position].ljust(len(old), b"\0")  # what stands behind it comes after its sync
    changed = [at for at in range(0, len(new), 512) if old[at : at + 512] != new[at : at + 512]]
    for arrived in range(1 << len(changed)):
        left = bytearray(old)
        for number, at in enumerate(changed):
            if arrived >> number & 1:
                left[at : at + 512] = new[at : at + 512]
        path.write_bytes(left)
        values, damage, _ = read_bindings(path, NODE)
        assert values["k", "a"] == value
        assert {one.kind for one in damage} <= {"torn-tail"}, f"{arrived:b}: {damage}"


@pytest.mark.parametrize(
    "where", ["in the snapshot", "in the first write", "in the middle of the second", "in the middle of the last"]
)
def test_what_was_confirmed_and_is_zeros_is_damage(tmp_path: Path, where: str) -> None:
    for life in (1, 2):
        bindings = Bindings(tmp_path, FileOperations(), node_id=NODE, epoch=life, salt=9)
        bindings.load(NODE)
        for write in range(3):
            bindings.write([bindings.put("k", f"{write}{key}", bytes([7]) * size) for key, size in CHANGES])
        bindings.close()
    path = newest_file(tmp_path)
    assert path is not None
    data = bytearray(path.read_bytes())
    _, _, header = read_bindings(path, None)
    begins = [one for one in scan(data, header.salt) if not isinstance(one, DamagedRange)]
    writes = [offset for offset, _ in begins if data[offset + FRAME_SIZE] == RecordType.BATCH]
    assert len(writes) == 5
    at = {
        "in the snapshot": writes[0],
        "in the first write": writes[1],
        "in the middle of the second": writes[2] + 1024,
        "in the middle of the last": writes[3] + 1024,
    }
    sector = (at[where] // 512 + 1) * 512
    data[sector : sector + 512] = bytes(512)
    path.write_bytes(data)
    assert [one.kind for one in read_bindings(path, NODE)[1]] == ["corrupt"]


def test_what_is_deleted_does_not_come_back_with_a_file_that_was_set_aside(tmp_path: Path) -> None:
    """A map that may lack something is completed from an earlier file that somebody put back: a power cut is nobody."""
    root, left = tmp_path / "disk", tmp_path / "left"
    root.mkdir()
    first = Bindings(root, FileOperations(), node_id=NODE, epoch=1, salt=9)
    first.load(NODE)
    first.write([first.put("queue", "a", b"1")])
    end = first._position
    first.write([first.put("queue", "b", b"2")])
    first.close()
    path = newest_file(root)
    assert path is not None
    data = bytearray(path.read_bytes())
    data[end + 30] ^= 1
    path.write_bytes(data)
    disk = LossyDisk(root)
    second = Bindings(root, disk, node_id=NODE, epoch=2, salt=8)
    assert second.load(NODE)[0] == {("queue", "a"): b"1"}
    second.write([second.put("queue", "a", None)])
    second.close()
    for seed in range(50):
        left.mkdir()
        materialise(disk.account.left(random.Random(seed)), left)  # noqa: S311  (a reproducible test, no secret)
        assert ("queue", "a") not in read_newest(left, NODE, expected=True)[0]
        shutil.rmtree(left)


@pytest.mark.parametrize("torn", [False, True])
def test_a_file_that_was_left_over_brings_nothing_back(tmp_path: Path, *, torn: bool) -> None:
    """A deletion that a power cut undid is nobody who puts a file back, wherever the next start ends."""
    root, left = tmp_path / "disk", tmp_path / "left"
    root.mkdir()
    first = Bindings(root, FileOperations(), node_id=NODE, epoch=1, salt=9)
    first.load(NODE)
    first.write([first.put("queue", "a", b"1")])
    first.close()
    before = newest_file(root)
    assert before is not None
    stale = before.read_bytes()
    second = Bindings(root, FileOperations(), node_id=NODE, epoch=2, salt=8)
    second.load(NODE)
    second.write([second.put("queue", "a", None)])
    end = second._position
    second.write([second.put("queue", "b", b"2")])
    second.close()
    path = newest_file(root)
    assert path is not None
    data = bytearray(path.read_bytes())
    if torn:
        data[second._position + 13 :] = bytes(len(data) - second._position - 13)
    else:
        data[end + 30] ^= 1
    path.write_bytes(data)
    before.write_bytes(stale)
    disk = LossyDisk(root)
    third = Bindings(root, disk, node_id=NODE, epoch=3, salt=7)
    assert ("queue", "a") not in third.load(NODE)[0]
    third.close()
    assert bool(list(root.glob("*.damaged"))) != torn
    for position in range(disk.adopted, len(disk.events) + 1):
        account = Account()
        for event in disk.events[:position]:
            account.apply(event)
        for seed in range(20):
            left.mkdir()
            materialise(account.left(random.Random(seed)), left)  # noqa: S311
            assert ("queue", "a") not in read_newest(left, NODE, expected=True)[0], position
            shutil.rmtree(left)


def test_a_map_that_lacks_something_does_so_until_it_is_put_back(tmp_path: Path) -> None:
    """However many lives there are before that."""
    first = Bindings(tmp_path, FileOperations(), node_id=NODE, epoch=1, salt=9)
    first.load(NODE)
    first.write([first.put("queue", "a", b"1")])
    first.close()
    path = newest_file(tmp_path)
    assert path is not None
    good = path.read_bytes()
    path.unlink()
    for epoch in (2, 3):
        later = Bindings(tmp_path, FileOperations(), node_id=NODE, epoch=epoch, salt=epoch)
        assert later.load(NODE, expected=True)[0] == {}
        later.close()
    path.write_bytes(good)
    assert read_newest(tmp_path, NODE, expected=True)[0] == {("queue", "a"): b"1"}
