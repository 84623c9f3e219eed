"""Records some of whose fields nobody may read in a log, a traceback or a debugger's window."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct


class Redacted(Struct, frozen=True):
    """Base of records with secrets: the fields in ``hidden`` are left out wherever the record is written for people."""

    hidden: ClassVar[frozenset[str]] = frozenset()

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The fields that may be seen, for rich."""
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name not in self.hidden]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"
