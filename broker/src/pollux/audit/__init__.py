"""The audit trail: what a broker did, as evidence beside the journal. See docs/audit-format.md."""

from pollux.audit.trail import QueueTrail, Trail

__all__ = ["QueueTrail", "Trail"]
