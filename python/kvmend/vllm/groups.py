"""KV cache groups: layers that share a request's list of blocks; what of it must be there. Pure.

vLLM keeps one list per group and request. In the list of a group with a window, blocks that later
tokens don't look back at are replaced by the null block; of a group with a state (Mamba) only the
last block counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FULL", "NULL", "STATE", "WINDOW", "Group", "Held", "Move", "moves"]

NULL = 0  # vLLM's null block: never a request's own

FULL = "full"  # every block is needed
WINDOW = "window"  # those that later tokens look back at
STATE = "state"  # the last one


@dataclass(frozen=True)
class Group:
    """What both sides must agree on; `tokens` of a block, `window` in tokens (0: none)."""

    tokens: int
    kind: str = FULL
    window: int = 0

    def __str__(self) -> str:
        window = f" of {self.window}" if self.window else ""
        return f"{self.kind}{window} in blocks of {self.tokens}"

    def blocks(self, tokens: int) -> int:
        """How long the list for so many tokens is."""
        return -(-tokens // self.tokens)

    def held(self, blocks: Sequence[int], tokens: int) -> Held:
        """What of a request's list can be read: the part for `tokens` tokens, after its last null
        block; of a state the last block."""
        if self.kind == STATE:
            kept = [b for b in blocks if b != NULL][-1:]
            return Held(0, tuple(kept))
        blocks = blocks[: self.blocks(tokens)]
        first = max((i + 1 for i, block in enumerate(blocks) if block == NULL), default=0)
        return Held(first, tuple(blocks[first:]))


@dataclass(frozen=True)
class Held:
    """Blocks of a group: number `first` of the request's list and those that follow."""

    first: int
    blocks: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.first + len(self.blocks)


@dataclass(frozen=True)
class Move:
    """Blocks of one group, one to one."""

    there: tuple[int, ...]
    here: tuple[int, ...]


def moves(
    group: Group, offered: Held, ours: Sequence[int], computed: int, tokens: int
) -> Move | None:
    """What to load so that the first `tokens` tokens are there, `computed` of them being so already
    (whole blocks). `ours`: our list. None if prefill lacks one of the blocks that we need."""
    if group.kind == STATE:
        mine = [block for block in ours if block != NULL][-1:]
        return Move(offered.blocks, tuple(mine)) if len(mine) == len(offered.blocks) else None
    first, end = computed // group.tokens, group.blocks(tokens)
    wanted = [i for i in range(first, min(end, len(ours))) if ours[i] != NULL]
    if len(ours) < end or any(not offered.first <= i < offered.end for i in wanted):
        return None
    there = tuple(offered.blocks[i - offered.first] for i in wanted)
    return Move(there, tuple(ours[i] for i in wanted))
