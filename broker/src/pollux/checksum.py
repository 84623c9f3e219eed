"""CRC-32C of the library ``crc32c``, without the rest of its package.

The package imports a command line and the metadata of everything installed, which is a tenth of what a broker needs to
start and a third of what the checkpointer does; after a failure that is time without a broker. The function is in its
extension module, which can be loaded alone.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _function() -> Callable[..., int]:
    package = PathFinder.find_spec("crc32c") if "crc32c" not in sys.modules else None
    places = package.submodule_search_locations if package is not None else None
    spec = PathFinder.find_spec("crc32c._crc32c", places) if places else None
    if spec is None or spec.loader is None:
        # Already there, or built in another way.
        from crc32c import crc32c as found

        return found
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    function: Callable[..., int] = extension.crc32c
    return function


#: ``crc32c(data, value=0)``: the checksum of ``data`` that goes on from ``value``.
crc32c = _function()
