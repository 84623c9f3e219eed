"""Checks that a takeover did not wait for: while clients are served, a look at what it took for granted.

A member that read pages along, and knows from the journal which files of large messages there must be, does not open
them before it serves. Whether they are still whole is looked at here, a few at a time. What is found is reported, and
nothing else: whoever reads a page or a body verifies it anyway.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pollux.store.files import exists, is_directory
from pollux.store.known_pages import changed
from pollux.store.lost_files import lost_files
from pollux.store.page_files import differs
from pollux.store.recovered import Damage

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from pollux.store.page_files import Page
    from pollux.store.port import Files

    Check = Callable[[], list[Damage]]

logger = logging.getLogger(__name__)

#: Files looked at in one go.
AT_ONCE = 64

T = TypeVar("T")


async def look(
    loop: asyncio.AbstractEventLoop,
    threads: Executor,
    checks: list[Check],
    report: Callable[[Damage], None],
) -> None:
    """Carry out one check after the other in a thread."""
    for check in checks:
        try:
            found = await loop.run_in_executor(threads, check)
        except OSError as error:
            logger.warning("what was taken over cannot be looked at: %s", error)
            continue
        for damage in found:
            report(damage)


def pages(some: list[Page], wanted: Callable[[Page], bool], files: Files) -> list[Check]:
    """Whether pages are as they were read; those that are not ``wanted`` any more may be gone."""

    def check(part: Sequence[Page]) -> list[Damage]:
        found = ((page, changed(page, files)) for page in part if wanted(page))
        return [damage for page, damage in found if damage is not None and wanted(page)]

    return _in_parts(check, some)


def names(some: list[tuple[Path, str]], files: Files) -> list[Check]:
    """Whether directories of pages say whose they are."""

    def check(part: Sequence[tuple[Path, str]]) -> list[Damage]:
        found = (differs(directory, address, files) for directory, address in part if is_directory(files, directory))
        return [damage for damage in found if damage is not None]

    return _in_parts(check, some)


def bodies(directory: Path, sizes: Mapping[int, int], files: Files) -> list[Check]:
    """Whether files of large messages have the sizes that they must have; those that are gone are not wanted."""

    def check(part: Sequence[tuple[int, int]]) -> list[Damage]:
        lost = lost_files(directory, dict(part), files=files)
        paths = {file: directory / f"{file}.msg" for file in lost}
        there = [one for one in lost if exists(files, paths[one])]
        return [Damage(paths[one], 0, 0, "lost-body", lost[one]) for one in there]

    return _in_parts(check, list(sizes.items()))


def _in_parts(check: Callable[[Sequence[T]], list[Damage]], some: Sequence[T]) -> list[Check]:
    return [partial(check, some[start : start + AT_ONCE]) for start in range(0, len(some), AT_ONCE)]
