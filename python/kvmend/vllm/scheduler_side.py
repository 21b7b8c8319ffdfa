"""The connector's half in vLLM's scheduler: what to load, what to lease. Without vLLM. One thread.

Requests are vLLM's: only what `Request` names is touched. Nothing here raises for what a client
sent: a request whose parameters can't be used is computed as any other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

from .groups import FULL, STATE, Group, Held, moves
from .leases import SLOTS
from .offers import BadOffer, Offer, RankAddress, prompt_digest
from .orders import LeaseOrder, LoadOrder, Step, WorkerAddress
from .settings import Settings
from .slots import Slots

__all__ = ["Pool", "Request", "SchedulerSide"]

log = logging.getLogger("vllm.kvmend")

#: vLLM's RequestStatus names of requests that have a whole prompt's blocks.
WHOLE = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED")


#: Part of a lease after which it is renewed while its request waits.
RENEW_AFTER = 0.25


class Status(Protocol):
    """What is used of vLLM's RequestStatus."""

    @property
    def name(self) -> str: ...


class Request(Protocol):
    """What is used of vLLM's Request."""

    @property
    def request_id(self) -> str: ...
    @property
    def kv_transfer_params(self) -> dict[str, Any] | None: ...

    prompt_token_ids: list[int] | None
    num_prompt_tokens: int
    _all_token_ids: list[int]
    max_tokens: int

    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def status(self) -> Status: ...


class Pool(Protocol):
    """vLLM's blocks, which count who uses them."""

    def hold(self, blocks: Sequence[int]) -> None:
        """Keeps a request's blocks when vLLM frees them."""

    def free(self, blocks: Sequence[int]) -> None:
        """Ends that."""


@dataclass
class Leased:
    """What a lease keeps until every worker has ended it."""

    blocks: list[int]
    staged: list[int]
    workers: int  # that haven't


class SchedulerSide:
    """One per instance (per data-parallel rank)."""

    def __init__(
        self,
        settings: Settings,
        groups: Sequence[Group],
        *,
        serves: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`groups`: KV cache groups. `serves`: this instance may be read from (vLLM's role)."""
        self._clock = clock
        self._settings = settings
        self._groups = tuple(groups)
        self._looks_back = any(group.kind != FULL for group in groups)
        self._states = any(group.kind == STATE for group in groups)
        self._serves = serves
        self._step = Step()
        self._offers: dict[str, Offer | None] = {}  # decode: of requests that may load
        self._computed: dict[str, int] = {}  # decode: tokens they have already
        self._renewals: dict[str, tuple[float, int]] = {}  # decode: next at, how many
        self._slots = Slots(SLOTS)
        self._generations = [0] * SLOTS
        self._leased: dict[int, Leased] = {}  # prefill: by slot
        self._pool: Pool | None = None
        self._ranks: tuple[RankAddress, ...] = ()
        self._stages = 1
        self._kv_heads = 0
        self._staging: Slots | None = None

    def workers(self, found: Mapping[Any, WorkerAddress]) -> None:
        """The instance's own workers by their number, once at the start."""
        ranks = [found[rank] for rank in sorted(found)]
        place = ranks[0].place
        if [r.place.number for r in ranks] != list(range(place.tp_size * place.stages)):
            raise ValueError(f"workers {sorted(found)} of {place} gave an address")
        self._stages = place.stages
        self._ranks = tuple(r.address for r in ranks)
        self._kv_heads = ranks[0].kv_heads
        staged = min(r.staging_blocks for r in ranks)
        self._staging = Slots(staged) if staged else None

    def bind(self, pool: Pool) -> None:
        """Once at the start."""
        self._pool = pool

    # ------------------------------------------------------------------------------------ decode

    def arrived(self, request: Request) -> None:
        """vLLM has a new request. One to load may wait for long: prefill's lease on it is renewed.
        One for decode isn't computed to its end where windows or states look back, see `shorten`.
        """
        self._offer(request)
        params = request.kv_transfer_params
        if self._looks_back and params and params.get("do_remote_decode"):
            shorten(request, params)

    def matched_tokens(self, request: Request, computed: int) -> tuple[int, bool]:
        """(tokens after the first `computed` that prefill holds, whether they load meanwhile)."""
        offer = self._offer(request)
        if offer is None:
            return 0, False
        # vLLM computes the last token of a prompt that is there as a whole once more. What that
        # one looks back at may be gone by then: leave it out where it matters.
        most = request.num_prompt_tokens - self._looks_back
        if offer.tokens > most and self._states:
            return 0, False  # a state is one of all the tokens that it has seen
        count = min(offer.tokens, most) - computed
        if count <= 0:
            return 0, False
        self._computed[request.request_id] = computed
        return count, True

    def allocated(self, request: Request, blocks: Sequence[Sequence[int]], external: int) -> None:
        """vLLM has `blocks` for the request, by group, and wants `external` tokens loaded there."""
        offer = self._offer(request)
        waited = self._forget(request)
        if offer is None:
            return
        if external <= 0:
            self._step.releases.append(offer)
            return
        if waited:
            self._step.renewals.append((offer, waited))  # the load has the lease's whole time
        computed = self._computed.pop(request.request_id, 0)
        tokens = computed + external
        found = [
            moves(group, held, ours, computed, tokens)
            if group.kind != STATE or tokens == offer.tokens
            else None
            for group, held, ours in zip(self._groups, offer.groups, blocks, strict=True)
        ]
        whole = tuple(move for move in found if move is not None)
        missing = "prefill has given away blocks that decode needs"
        order = LoadOrder(request.request_id, replace(offer, groups=()), whole,
                          "" if len(whole) == len(found) else missing)  # fmt: skip
        self._step.loads.append(order)

    def _offer(self, request: Request) -> Offer | None:
        """What prefill offered for this request and hasn't been taken yet."""
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_prefill"):
            return None
        if request.request_id not in self._offers:
            offer = self._offers[request.request_id] = self._checked(request, params)
            if offer:
                first = self._clock() + offer.seconds * RENEW_AFTER
                self._renewals[request.request_id] = (first, 0)
        return self._offers[request.request_id]

    def _checked(self, request: Request, params: Mapping[str, Any]) -> Offer | None:
        try:
            offer = Offer.from_params(params)
            tokens = request.prompt_token_ids or []
            if offer.tokens > len(tokens):
                raise BadOffer(f"{offer.tokens} tokens offered for a prompt of {len(tokens)}")
            if len(offer.groups) != len(self._groups):
                raise BadOffer(f"{len(offer.groups)} KV cache groups, {len(self._groups)} here")
            for group, held in zip(self._groups, offer.groups, strict=True):
                if held.end != (1 if group.kind == STATE else group.blocks(offer.tokens)):
                    raise BadOffer(f"{held.end} blocks for {offer.tokens} tokens of a {group}: "
                                   "--block-size must be equal")  # fmt: skip
            if offer.prompt != digest_of(request, offer.tokens):
                raise BadOffer("prefill computed another prompt")
            return offer
        except BadOffer as error:
            log.warning("request %s is computed here: %s", request.request_id, error)
            return None

    def _forget(self, request: Request) -> int:
        """A request loads once; if vLLM schedules it again, it is computed. Returns the number of
        its next renewal; 0 if there was none yet."""
        if request.kv_transfer_params:
            request.kv_transfer_params["do_remote_prefill"] = False
        self._offers.pop(request.request_id, None)
        _, count = self._renewals.pop(request.request_id, (0.0, 0))
        return count + 1 if count else 0

    def _renew(self) -> None:
        now = self._clock()
        for request_id, (at, count) in self._renewals.items():
            offer = self._offers[request_id]
            if now >= at and offer:
                self._step.renewals.append((offer, count + 1))
                self._renewals[request_id] = (now + offer.seconds * RENEW_AFTER, count + 1)

    # ----------------------------------------------------------------------------------- prefill

    def finished(self, request: Request, blocks: Sequence[Sequence[int]]) -> dict[str, Any] | None:
        """What to hand to decode; of `blocks`, by group, the pool keeps what it may read.

        vLLM need not keep the request for them, so it has nothing to do while a lease runs. What it
        would do every millisecond else, see `ended`, is done when it has: nobody wants the blocks
        before that.
        """
        params = request.kv_transfer_params
        if not params:
            return None
        if params.get("do_remote_prefill"):  # it never got blocks: aborted while it waited
            if offer := self._offer(request):
                self._step.releases.append(offer)
            self._forget(request)
            self._computed.pop(request.request_id, None)
            return None
        if not params.get("do_remote_decode") or request.status.name not in WHOLE:
            return None
        if not self._serves:
            log.warning("request %s isn't offered: this is a kv_consumer", request.request_id)
            return None
        return self._lease(request, blocks)

    def _lease(self, request: Request, lists: Sequence[Sequence[int]]) -> dict[str, Any] | None:
        tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
        groups = [g.held(b, tokens) for g, b in zip(self._groups, lists, strict=True)]
        blocks = [block for held in groups for block in held.blocks]
        if not blocks or not request.prompt_token_ids or not self._ranks or self._pool is None:
            return None
        if tokens != request.num_computed_tokens and self._states:
            log.warning("request %s isn't offered: its state is past its prompt; ask prefill for "
                        "one token", request.request_id)  # fmt: skip
            return None
        slot = self._slots.take()
        if slot is None:
            log.warning("request %s isn't offered: %d leases run", request.request_id, SLOTS)
            return None
        staged: list[int] = []
        if self._staging is not None:
            found = self._staging.take(len(blocks))
            if found is None:
                self._slots.give(slot)
                log.warning(
                    "request %s isn't offered: staging_bytes are used up", request.request_id
                )
                return None
            staged = found
            groups = in_place_of(groups, staged)
        self._generations[slot[0]] += 1
        offer = Offer(
            slot[0], self._generations[slot[0]], self._settings.lease_seconds, self._kv_heads,
            tokens, digest_of(request, tokens), tuple(groups), self._stages, self._ranks,
        )  # fmt: skip
        self._pool.hold(blocks)
        self._leased[offer.slot] = Leased(blocks, staged, len(self._ranks))
        self._step.leases.append(
            LeaseOrder(request.request_id, offer.slot, offer.generation,
                       self._settings.lease_seconds, blocks, staged)
        )  # fmt: skip
        return offer.to_params()

    def ended(self, slots: Mapping[int, int]) -> None:
        """So many more workers have ended the leases of these slots."""
        for slot, workers in slots.items():
            lease = self._leased[slot]
            lease.workers -= workers
            if lease.workers:
                continue
            del self._leased[slot]
            self._slots.give([slot])
            if self._staging is not None:
                self._staging.give(lease.staged)
            if self._pool is not None:
                self._pool.free(lease.blocks)

    # -------------------------------------------------------------------------------------- both

    def step(self) -> Step:
        """The orders since the last call."""
        self._renew()
        step, self._step = self._step, Step()
        return step


def in_place_of(groups: Sequence[Held], blocks: Sequence[int]) -> list[Held]:
    """The groups with `blocks` in place of theirs, in that order."""
    rest = iter(blocks)
    return [Held(held.first, tuple(islice(rest, len(held.blocks)))) for held in groups]


def shorten(request: Request, params: dict[str, Any]) -> None:
    """Takes the last token off a prompt that is prefilled for decode, which computes it.

    So prefill keeps what that token looks back at: a window that ends before it, or the state
    before it. Prefill's own answer, which nobody reads, is then one to a shorter prompt.
    """
    tokens = request.prompt_token_ids
    if params.get("kvmend_shortened") or not tokens or len(tokens) < 2:
        return
    if getattr(request, "skip_reading_prefix_cache", False):  # decode loads nothing then
        return
    params["kvmend_shortened"] = True
    del tokens[-1]
    del request._all_token_ids[-1]
    request.num_prompt_tokens -= 1
    request.max_tokens = 1


def digest_of(request: Request, tokens: int) -> str:
    """Of a request's first tokens, its adapter, and its images."""
    lora = getattr(request, "lora_request", None)
    more = [f"lora {getattr(lora, 'lora_name', lora)}"] if lora else []
    more += [str(getattr(f, "identifier", f)) for f in getattr(request, "mm_features", None) or ()]
    return prompt_digest((request.prompt_token_ids or [])[:tokens], more)
