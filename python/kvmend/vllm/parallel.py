"""Which prefill ranks a decode rank reads which heads from, and where ranks stand. Pure.

A rank of `size` holds heads `[rank * total // size, ...)` of `total`: an equal share, or, with more
ranks than heads, one head that its neighbours hold too (as vLLM divides them).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Place", "Source", "heads_of", "readers", "sources"]


@dataclass(frozen=True)
class Place:
    """A rank's place in its instance."""

    tp_rank: int = 0
    tp_size: int = 1
    stage: int = 0  # of the pipeline
    stages: int = 1

    @property
    def number(self) -> int:
        """Counted stage by stage."""
        return self.stage * self.tp_size + self.tp_rank


@dataclass(frozen=True)
class Source:
    """Heads to read: `rank` of prefill holds them from its `their_head` on, we from `our_head`."""

    rank: int
    their_head: int
    our_head: int
    heads: int


def heads_of(rank: int, size: int, total: int) -> range:
    """Global numbers of the heads on a rank. Raises ValueError where vLLM couldn't divide them."""
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size}")
    if (total % size if total >= size else size % total) != 0:
        raise ValueError(f"{total} KV heads can't be divided among {size} ranks")
    first = rank * total // size
    return range(first, first + max(1, total // size))


@lru_cache(4096)
def sources(
    total: int, prefill_size: int, decode_size: int, decode_rank: int
) -> tuple[Source, ...]:
    """What a decode rank reads, in the order of its heads.

    Where several prefill ranks hold the same head, neighbouring decode ranks take different ones.
    """
    ours = heads_of(decode_rank, decode_size, total)
    found: list[Source] = []
    for head in ours:
        holders = [r for r in range(prefill_size) if head in heads_of(r, prefill_size, total)]
        rank = holders[decode_rank % len(holders)]
        last = found[-1] if found else None
        if last and last.rank == rank:
            found[-1] = Source(rank, last.their_head, last.our_head, last.heads + 1)
        else:
            their_head = head - heads_of(rank, prefill_size, total).start
            found.append(Source(rank, their_head, head - ours.start, 1))
    return tuple(found)


@lru_cache(4096)
def readers(total: int, prefill_size: int, decode_size: int, prefill_rank: int) -> tuple[int, ...]:
    """The decode ranks that a prefill rank hears "done" from: those that read from it, or, if none
    does, one that says so nevertheless."""
    found = [
        d for d in range(decode_size)
        if any(s.rank == prefill_rank for s in sources(total, prefill_size, decode_size, d))
    ]  # fmt: skip
    return tuple(found or [prefill_rank % decode_size])
