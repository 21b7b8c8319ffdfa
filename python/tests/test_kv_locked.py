"""L7. The last of the KV tests by name: what it looks at has run beside them (see conftest.py)."""

from __future__ import annotations

from kvmend import KVPoll
from kvmend.testing.locked import Locked


def test_l7_requests_end_while_decode_holds_its_interpreter_lock(locked: Locked) -> None:
    """One call into C keeps decode's lock for 15 s; nothing in Python runs there meanwhile."""
    held = locked.finish()
    assert locked.statuses == [KVPoll.SUCCESS] * len(locked.rooms)
    assert held == [4] * len(locked.rooms), "decided before the lock was given back"
    assert locked.pair.pages_equal(locked.rooms, locked.rooms)
