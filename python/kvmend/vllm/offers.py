"""What a prefill instance offers to decode: the `kv_transfer_params` of a finished request.

It passes through routers and clients as JSON, so decode checks every value. Numbers beyond 2**53
travel as hexadecimal text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .groups import Held
from .leases import MAX_READERS, SLOTS
from .parallel import heads_of

__all__ = ["BadOffer", "Offer", "RankAddress", "prompt_digest"]

VERSION = 2
MAX_RANKS = 1024
MAX_GROUPS = 256
MAX_BLOCKS = 1 << 20
MAX_DESCRIPTOR = 4 << 20  # bytes


class BadOffer(ValueError):
    """kv_transfer_params that can't be used; says why."""


@dataclass(frozen=True)
class RankAddress:
    """Where one prefill rank's engine listens and its descriptor lies."""

    session_id: str
    incarnation: int
    descriptor: int  # address there
    descriptor_bytes: int

    def to_json(self) -> list[Any]:
        return [
            self.session_id,
            f"{self.incarnation:x}",
            f"{self.descriptor:x}",
            self.descriptor_bytes,
        ]

    @classmethod
    def from_json(cls, value: Any) -> RankAddress:
        session_id, incarnation, descriptor, size = value
        if not isinstance(session_id, str) or not 0 < len(session_id) <= 256:
            raise BadOffer("ranks: a session id is missing")
        found = cls(session_id, int(incarnation, 16), int(descriptor, 16), checked("ranks", size))
        if not (0 < found.incarnation < 2**64 and 0 < found.descriptor < 2**64):
            raise BadOffer("ranks: a number is beyond 64 bits")
        if not 0 < size <= MAX_DESCRIPTOR:
            raise BadOffer(f"ranks: a descriptor of {size} bytes")
        return found


@dataclass(frozen=True)
class Offer:
    """A leased request: its blocks in prefill's cache, for the first `tokens` of its prompt."""

    slot: int
    generation: int
    seconds: float  # of the lease, unless it is renewed
    kv_heads: int  # of the model
    tokens: int
    prompt: str  # prompt_digest of those tokens
    groups: tuple[Held, ...]  # blocks by KV cache group
    stages: int  # of the pipeline
    ranks: tuple[RankAddress, ...]  # stage by stage, in each by tensor-parallel rank

    @property
    def tp_size(self) -> int:
        return len(self.ranks) // self.stages

    def to_params(self) -> dict[str, Any]:
        """vLLM's names first, then ours."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "kvmend": {
                "version": VERSION,
                "lease": [self.slot, self.generation, self.seconds],
                "kv_heads": self.kv_heads,
                "tokens": self.tokens,
                "prompt": self.prompt,
                "groups": [[held.first, list(held.blocks)] for held in self.groups],
                "stages": self.stages,
                "ranks": [rank.to_json() for rank in self.ranks],
            },
        }

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Offer:
        """Raises BadOffer for whatever isn't one, however malformed."""
        try:
            return cls._from(params["kvmend"])
        except BadOffer:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadOffer(f"{type(error).__name__}: {str(error)[:200]}") from None

    @classmethod
    def _from(cls, value: Mapping[str, Any]) -> Offer:
        if value["version"] != VERSION:
            raise BadOffer(f"version {value['version']!r} of prefill's connector, {VERSION} here")
        groups, ranks = value["groups"], value["ranks"]
        if not isinstance(groups, list) or not 0 < len(groups) <= MAX_GROUPS:
            raise BadOffer("groups isn't a list, or has a senseless length")
        if not isinstance(ranks, list) or not 0 < len(ranks) <= MAX_RANKS:
            raise BadOffer("ranks isn't a list, or has a senseless length")
        slot, generation, seconds = value["lease"]
        if type(seconds) not in (int, float) or not 0 < seconds < 1e9:
            raise BadOffer(f"a lease of {seconds!r} s")
        offer = cls(
            slot=checked("lease", slot),
            generation=checked("lease", generation),
            seconds=float(seconds),
            kv_heads=checked("kv_heads", value["kv_heads"]),
            tokens=checked("tokens", value["tokens"]),
            prompt=str(value["prompt"]),
            groups=tuple(held_of(*group) for group in groups),
            stages=checked("stages", value["stages"]),
            ranks=tuple(RankAddress.from_json(rank) for rank in ranks),
        )
        if offer.slot >= SLOTS or offer.generation >= 2**48 or offer.kv_heads > 1 << 20:
            raise BadOffer("lease or kv_heads out of range")
        if not 0 < offer.stages <= len(ranks) or len(ranks) % offer.stages:
            raise BadOffer(f"{len(ranks)} ranks in {offer.stages} stages")
        heads_of(0, offer.tp_size, offer.kv_heads)
        return offer


def held_of(first: Any, blocks: Any) -> Held:
    if not isinstance(blocks, list) or not len(blocks) <= MAX_BLOCKS:
        raise BadOffer("groups: blocks that aren't a list, or too long")
    return Held(checked("groups", first), tuple(checked("groups", block) for block in blocks))


def checked(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise BadOffer(f"{name}: {value!r} isn't a whole number")
    return value


def prompt_digest(tokens: Sequence[int], more: Iterable[str] = ()) -> str:
    """Names what the blocks were computed from: token ids, and e.g. the names of adapters."""
    digest = hashlib.blake2b(np.asarray(tokens, dtype=np.int64).tobytes(), digest_size=16)
    for text in more:
        digest.update(b"\0" + text.encode())
    return digest.hexdigest()


assert MAX_READERS < 1 << 16
