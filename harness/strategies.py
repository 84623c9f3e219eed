"""Hypothesis strategies that tests of several layers use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def records(kind: Callable[..., _T], *parts: st.SearchStrategy[Any], **named: st.SearchStrategy[Any]) -> Any:
    """`st.builds`, which does not evaluate the record's annotations: they name what only the type checker imports."""

    def make(*values: Any, **others: Any) -> _T:
        return kind(*values, **others)

    return st.builds(make, *parts, **named)
