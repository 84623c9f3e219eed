"""What a member of an active-passive cluster shows of itself and of the others. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.ha.active_passive.promotion import Answer, Record, Verdict
    from pollux.ha.active_passive.settings import Settings
    from pollux.ha.active_passive.statuses import Status


def cluster_view(
    settings: Settings, member_id: str, status: Status, record: Record | None, answers: Iterable[Answer]
) -> dict[str, Any]:
    """Return what this member and all others are; who does not answer has no status."""
    members = [_member(settings.me, status, record), *(_member(one.member, one.status, one.record) for one in answers)]
    return {
        "status": status.value,
        "id": member_id,
        "brokersUrl": settings.brokers_url,
        "publicUrl": settings.public_url,
        "replicate": settings.replicate,
        "members": sorted(members, key=lambda one: str(one["address"])),
    }


def _member(address: str, status: Status | None, record: Record | None) -> dict[str, Any]:
    return {
        "address": address,
        "status": status.value if status is not None else None,
        "number": str(record.number) if record is not None else None,
    }


def verdict_view(verdict: Verdict, status: Status, record: Record | None) -> dict[str, Any]:
    """Return what whoever asked for a promotion or a demotion is told: what came of it, and of this member's data."""
    return {
        "promoted": verdict.promoted,
        "why": verdict.why.value,
        "reason": verdict.reason,
        "status": status.value,
        "expected": sorted(verdict.expected),
        "unfenced": sorted(verdict.unfenced),
        "number": str(record.number) if record is not None else None,
    }
