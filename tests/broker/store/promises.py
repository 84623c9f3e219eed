"""The knowledge of somebody outside the store: what was asked for, confirmed and seen. Judges what is left.

Shares nothing with the store: a unit is *begun* when it is handed over and *confirmed* when the store said so. What a
life found when it began counts as confirmed from then on, for clients may have seen it.
"""

from __future__ import annotations

from typing import NamedTuple

#: (queue id, message id)
Place = tuple[int, int]
#: What has a value: a binding by its name, and ("count" or "schedule", the message it is of).
Key = str | tuple[str, Place]
#: What a prepared transaction adds and removes.
Prepared = tuple[frozenset[Place], frozenset[Place]]


class Unit(NamedTuple):
    """A request of changes at once; with ``whole`` all of it happens or nothing (a transaction)."""

    number: int
    adds: tuple[Place, ...] = ()
    removes: tuple[Place, ...] = ()
    puts: tuple[tuple[Key, bytes | int | None], ...] = ()
    duplicates: tuple[bytes, ...] = ()
    whole: bool = False
    #: Of a transaction in two phases, and what is done with it: "prepare", "commit", "rollback".
    xid: bytes = b""
    outcome: str = ""


class Found(NamedTuple):
    """The contents of a store."""

    places: frozenset[Place]
    values: dict[Key, bytes | int]
    duplicates: frozenset[bytes]
    prepared: dict[bytes, Prepared]


class Promises:
    """Told of notes in the order in which they were made; ``wrong`` says what contradicts them."""

    def __init__(self) -> None:
        #: Place -> whether it must be there; absent: it must not.
        self._places: dict[Place, bool] = {}
        self._removing: set[Place] = set()
        #: Every value that something may have; the first is the confirmed one.
        self._values: dict[Key, list[tuple[int, bytes | int | None]]] = {}
        #: Prepared transactions, and whether they must be there.
        self._prepared: dict[bytes, tuple[Prepared, bool]] = {}
        self._duplicates: set[bytes] = set()
        self._open: dict[int, Unit] = {}

    def copy(self) -> Promises:
        """Return the promises as they are now."""
        other = Promises()
        other._places = dict(self._places)
        other._removing = set(self._removing)
        other._values = {key: list(values) for key, values in self._values.items()}
        other._prepared = dict(self._prepared)
        other._duplicates = set(self._duplicates)
        other._open = dict(self._open)
        return other

    def note(self, kind: str, value: Unit | Found) -> None:
        """Take in a note: a unit that is "begun" or "confirmed", or what was "recovered"."""
        if isinstance(value, Found):
            self._recovered(value)
        elif kind == "begun":
            self._begun(value)
        else:
            self._confirmed(value)

    def _begun(self, unit: Unit) -> None:
        self._open[unit.number] = unit
        if unit.outcome == "prepare":
            self._prepared[unit.xid] = ((frozenset(unit.adds), frozenset(unit.removes)), False)
            return
        if unit.outcome:
            self._prepared[unit.xid] = (self._prepared[unit.xid][0], False)
        for place in unit.adds:
            self._places[place] = False
        for place in unit.removes:
            if place in self._places:
                self._places[place] = False
                self._removing.add(place)
        for key, value in unit.puts:
            self._values.setdefault(key, [(0, None)]).append((unit.number, value))

    def _confirmed(self, unit: Unit) -> None:
        del self._open[unit.number]
        if unit.outcome == "prepare":
            self._prepared[unit.xid] = (self._prepared[unit.xid][0], True)
            return
        self._prepared.pop(unit.xid, None)
        for place in unit.adds:
            if place in self._places and place not in self._removing:
                self._places[place] = True
        for place in unit.removes:
            self._places.pop(place, None)
        for key, _ in unit.puts:
            values = self._values[key]
            newest = max(index for index, (number, _) in enumerate(values) if number <= unit.number)
            del values[:newest]
        self._duplicates.update(unit.duplicates)

    def _recovered(self, found: Found) -> None:
        self._places = dict.fromkeys(found.places, True)
        self._removing.clear()
        self._open.clear()
        self._duplicates = set(found.duplicates)
        self._values = {
            key: [(0, found.values.get(key))]
            for key in {*self._values, *found.values}
            if isinstance(key, str) or key[1] in found.places
        }
        self._prepared = {xid: (prepared, True) for xid, prepared in found.prepared.items()}

    def wrong(self, found: Found) -> list[str]:
        """Return what was promised and is not so."""
        places = self._places
        lost = {place for place, must in places.items() if must} - found.places
        words = [f"{len(lost)} confirmed messages are lost: {sorted(lost)[:5]}"] if lost else []
        if strange := found.places - places.keys():
            words.append(f"{len(strange)} messages came back, or were never sent: {sorted(strange)[:5]}")
        if forgotten := self._duplicates - found.duplicates:
            words.append(f"duplicate ids are forgotten: {sorted(forgotten)[:5]}")
        words += self._wrong_values(found) + self._wrong_prepared(found)
        words += [f"half of transaction {unit}" for unit in self._open.values() if not self._whole(unit, found)]
        return words

    def _wrong_values(self, found: Found) -> list[str]:
        words = []
        for key in {*self._values, *found.values}:
            if not isinstance(key, str) and (key[1] not in found.places or key[1] in self._removing):
                continue
            may = [value for _, value in self._values.get(key, [(0, None)])]
            if found.values.get(key) not in may:
                words.append(f"{key} is {found.values.get(key)!r}, it may be {may}")
        return words

    def _wrong_prepared(self, found: Found) -> list[str]:
        lost = {xid for xid, (_, must) in self._prepared.items() if must} - found.prepared.keys()
        words = [f"prepared transactions are lost: {sorted(lost)}"] if lost else []
        for xid, prepared in found.prepared.items():
            if prepared != self._prepared.get(xid, (None, False))[0]:
                words.append(f"prepared transaction {xid!r} is {prepared}, it was {self._prepared.get(xid)}")
        return words

    def _whole(self, unit: Unit, found: Found) -> bool:
        if not unit.whole or unit.outcome == "prepare":
            return True
        happened = {place in found.places for place in unit.adds if place not in self._removing}
        happened |= {place not in found.places for place in unit.removes if place in self._places}
        if unit.outcome:
            happened.add(unit.xid not in found.prepared)
        return len(happened) < 2
