"""The bindings journal: the last value counts, across stops, damage and its own compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pollux.errors import StoreError
from pollux.store.bindings import Bindings, newest_file, read_bindings
from pollux.store.files import FileOperations

from .helpers import NODE, opened, settings_in, stable

if TYPE_CHECKING:
    from pathlib import Path


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
