"""Resolve what holds for one address: merged settings, and the roles that have each permission. Pure.

All ``<address-setting>`` elements that match are merged, the more specific overriding the less
specific value by value. Of the matching ``<security-setting>`` elements only the most specific one
counts, as in Artemis: permissions are never inherited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec.structs import replace

from pollux.config.address_settings import AddressSettings
from pollux.config.match import Pattern, compile_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pollux.config.address_settings import AddressSetting
    from pollux.config.extensions import SecuritySetting
    from pollux.config.model import Configuration


class _Matched(Protocol):
    @property
    def match(self) -> str: ...


T = TypeVar("T", bound=_Matched)


def pattern_of(configuration: Configuration, match: str) -> Pattern:
    """Return the compiled form of a match under this configuration's wildcards."""
    wildcards = configuration.wildcard_addresses
    return compile_pattern(
        match,
        delimiter=wildcards.delimiter,
        any_words=wildcards.any_words,
        single_word=wildcards.single_word,
        literal_markers=configuration.literal_match_markers,
    )


class _Index(Generic[T]):
    """Settings by match: those without wildcards in a dictionary, the others in the order of specificity."""

    def __init__(self, configuration: Configuration, settings: Iterable[T]) -> None:
        self._exact: dict[str, T] = {}
        patterns: list[tuple[Pattern, T]] = []
        for setting in settings:
            pattern = pattern_of(configuration, setting.match)
            if pattern.is_exact:
                self._exact[setting.match] = setting
            else:
                patterns.append((pattern, setting))
        # Stable: of two equally specific ones the later in the file wins.
        self._patterns = sorted(patterns, key=lambda found: found[0].specificity())

    def matching(self, address: str) -> list[T]:
        """Return what matches, the least specific first."""
        found = [setting for pattern, setting in self._patterns if pattern.matches(address)]
        exact = self._exact.get(address)
        if exact is not None:
            found.append(exact)
        return found


#: Addresses of the broker's own, such as the store-and-forward queues of a cluster; no setting applies to them.
INTERNAL_PREFIX = "$.artemis.internal."
_INTERNAL = AddressSettings(max_delivery_attempts=-1, max_size_bytes=16 << 20, auto_delete_queues=False)


class AddressSettingsResolver:
    """Merges every ``<address-setting>`` of a configuration that matches an address; the patterns are compiled once."""

    def __init__(self, configuration: Configuration) -> None:
        self._id_cache_size = configuration.id_cache_size
        self._index: _Index[AddressSetting] = _Index(configuration, configuration.address_settings)

    def of(self, address: str) -> AddressSettings:
        """Return what holds for an address, merged from the least to the most specific.

        Callers cache the result for each address: the cost is proportional to the number of patterns.
        """
        if address.startswith(INTERNAL_PREFIX):
            return _INTERNAL
        merged: dict[str, Any] = {"id_cache_size": -1}
        for setting in self._index.matching(address):
            merged.update(setting.values)
        if merged["id_cache_size"] < 0:
            merged["id_cache_size"] = self._id_cache_size
        settings = AddressSettings(**merged)
        if settings.max_redelivery_delay < 0:
            settings = replace(settings, max_redelivery_delay=settings.redelivery_delay * 10)
        return settings


def audited(configuration: Configuration) -> Callable[[str], bool]:
    """Return what tells whether the messages of an address are audited (``<px:messages match=>``)."""
    patterns = [pattern_of(configuration, each.match) for each in configuration.audit.messages]
    return lambda address: any(pattern.matches(address) for pattern in patterns)


class PermissionsResolver:
    """Finds which of some ``<security-setting>`` counts at an address; the patterns are compiled once."""

    def __init__(self, configuration: Configuration, settings: Iterable[SecuritySetting]) -> None:
        self._index = _Index(configuration, settings)

    def of(self, address: str) -> Mapping[str, frozenset[str]]:
        """Return role names by permission name from the most specific setting that matches.

        Empty when none matches: then nobody may do anything at the address.
        """
        matching = self._index.matching(address)
        return matching[-1].permissions if matching else {}
