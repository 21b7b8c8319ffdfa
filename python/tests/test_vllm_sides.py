"""Both sides of the vLLM connector over real engines; NumPy arrays are the caches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kvmend.testing.peer import Peer, wait_until
from kvmend.testing.vllm_rank import (
    BLOCKS,
    GROUPS,
    TOKENS,
    BlockCounts,
    Request,
    Side,
    Status,
    full_cache,
    until,
)
from kvmend.vllm.groups import FULL, STATE, WINDOW, Group
from kvmend.vllm.parallel import heads_of
from kvmend.vllm.scheduler_side import SchedulerSide
from kvmend.vllm.settings import Settings

PROMPT = list(range(100, 100 + 2 * TOKENS + 3))  # three blocks, the last one not full


@pytest.fixture
def side() -> Iterator[Callable[..., Side]]:
    """Makes instances, and ends them."""
    made: list[Side] = []

    def make(size: int = 1, seed: int = 0, **options: Any) -> Side:
        made.append(Side(size, seed, **options))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def same(d: Side, here: list[int], seed: int, there: list[int], group: int | None = None) -> bool:
    """Whether decode's blocks hold what a prefill with `seed` has in `there` (of one group)."""
    wanted = full_cache(seed)
    for rank in d.ranks:
        place = rank.worker.address.place
        heads = heads_of(place.tp_rank, place.tp_size, wanted[0].shape[1])
        for number, cache in zip(rank.layers, rank.caches, strict=True):
            if group in (None, number % len(d.groups)):
                layer = wanted[number][there][:, heads.start : heads.stop]
                if not (cache[here] == layer).all():
                    return False
    return True


def untouched(d: Side, seed: int, but: list[int], group: int | None = None) -> bool:
    others = [b for b in range(BLOCKS) if b not in but]
    return same(d, others, seed, others, group)


@pytest.mark.parametrize("staged", [(0, 0), (4, 0), (0, 4), (4, 4)])
@pytest.mark.parametrize(("p_size", "d_size"), [(1, 1), (2, 2), (1, 4), (4, 1), (2, 8), (8, 2)])
def test_blocks_arrive_whatever_the_two_parallelisms(
    side: Callable[..., Side], p_size: int, d_size: int, staged: tuple[int, int]
) -> None:
    p = side(p_size, seed=1, staged_blocks=staged[0])
    d = side(d_size, seed=2, staged_blocks=staged[1])
    params = json.loads(json.dumps(p.prefill("p", PROMPT, [7, 3, 12])))
    d.decode("d", PROMPT, params, [5, 19, 18])
    until(lambda: d.everyone("received", "d") and p.everyone("sent", "p"), p, d)
    assert same(d, [5, 19, 18], 1, [7, 3, 12]) and untouched(d, 2, [5, 19, 18])
    assert not any(rank.failed for rank in d.ranks)
    assert (p.counted("leases_done"), d.counted("loads")) == (p_size, d_size)


def test_layouts_with_heads_first_and_tokens_first_fit_together(side: Callable[..., Side]) -> None:
    p, d = side(2, seed=1, tokens_first=True), side(1, seed=2)
    d.decode("d", PROMPT, p.prefill("p", PROMPT, [7, 3, 12]), [5, 19, 18])
    until(lambda: d.everyone("received", "d"), p, d)
    assert same(d, [5, 19, 18], 1, [7, 3, 12])


def test_only_blocks_that_decode_has_not_are_loaded(side: Callable[..., Side]) -> None:
    p, d = side(seed=1), side(seed=2)
    params = p.prefill("p", PROMPT, [7, 3, 12])
    d.decode("d", PROMPT, params, [4, 5, 6], computed=TOKENS)
    until(lambda: d.everyone("received", "d"), p, d)
    assert same(d, [5, 6], 1, [3, 12]) and untouched(d, 2, [5, 6])


def test_a_longer_prompt_loads_what_prefill_has(side: Callable[..., Side]) -> None:
    p, d = side(seed=1), side(seed=2)
    params = p.prefill("p", PROMPT[: 2 * TOKENS], [7, 3])
    d.decode("d", [*PROMPT, 1, 2, 3], params, [4, 5, 6])
    until(lambda: d.everyone("received", "d"), p, d)
    assert same(d, [4, 5], 1, [7, 3]) and untouched(d, 2, [4, 5])


def test_what_decode_has_already_is_given_back_at_once(side: Callable[..., Side]) -> None:
    p, d = side(2, seed=1), side(1, seed=2)
    d.decode("d", PROMPT, p.prefill("p", PROMPT, [7, 3, 12]), [4, 5, 6], computed=len(PROMPT))
    until(lambda: p.everyone("sent", "p"), p, d)
    assert untouched(d, 2, []) and p.counted("leases_done") == 2


def test_a_request_that_was_aborted_before_it_got_blocks_is_given_back(
    side: Callable[..., Side],
) -> None:
    p, d = side(seed=1), side(seed=2)
    params = p.prefill("p", PROMPT, [7, 3, 12])
    request = Request("d", PROMPT, params, status=Status("FINISHED_ABORTED"))
    assert d.scheduler.finished(request, [[]]) is None
    until(lambda: p.everyone("sent", "p"), p, d)


def test_a_lease_that_is_over_is_refused_even_when_the_blocks_have_changed(
    side: Callable[..., Side],
) -> None:
    p, d = side(seed=1, lease_seconds=0.001), side(seed=2)
    params = p.prefill("p", PROMPT, [7, 3, 12])
    until(lambda: p.everyone("sent", "p"), p)
    again = p.prefill("another", PROMPT, [7, 3, 12])  # has the same blocks now
    assert again["kvmend"]["lease"] != params["kvmend"]["lease"]
    d.decode("d", PROMPT, params, [5, 19, 18])
    until(lambda: d.everyone("received", "d"), d)
    assert d.ranks[0].failed == {5, 19, 18} and d.counted("loads_refused") == 1


def test_a_lease_that_ends_while_it_is_read_does_not_count(side: Callable[..., Side]) -> None:
    p, d = side(seed=1), side(seed=2)
    d.decode("d", PROMPT, p.prefill("p", PROMPT, [7, 3, 12]), [5, 19, 18])
    d.turn()  # decode reads on; the lease's word isn't there yet, so it can't be confirmed
    for _ in range(20):
        d.turn()
        assert "d" not in d.ranks[0].received
    p.turn()
    slot = p.ranks[0].worker._lessor._leases[p.slots["p"]]
    p.ranks[0].worker._lessor._board.end(slot.slot, slot.generation)
    until(lambda: d.everyone("received", "d"), d)
    assert d.ranks[0].failed == {5, 19, 18}


@pytest.mark.parametrize("staged", [0, 4])
def test_decode_that_comes_before_the_lease_has_begun_waits_for_it(
    side: Callable[..., Side], staged: int
) -> None:
    """What it has read until then doesn't count: staged blocks weren't there yet."""
    p, d = side(seed=1, staged_blocks=staged), side(seed=2)
    d.decode("d", PROMPT, p.prefill("p", PROMPT, [7, 3, 12]), [5, 19, 18])
    d.turn()
    engine = d.ranks[0].worker._engine
    wait_until(lambda: engine.stats().transfers_ok >= 3, "descriptor, blocks and the lease's word")
    d.turn()
    assert not d.ranks[0].received
    until(lambda: d.everyone("received", "d"), p, d)
    assert same(d, [5, 19, 18], 1, [7, 3, 12]) and not d.ranks[0].failed


def test_a_request_that_waits_renews_its_lease(side: Callable[..., Side]) -> None:
    p, d = side(2, seed=1), side(1, seed=2)
    params = p.prefill("p", PROMPT, [7, 3, 12])
    p.turn()
    now = [0.0]
    d.scheduler = SchedulerSide(Settings(), GROUPS, clock=lambda: now[0])
    request = Request("d", PROMPT, params)
    d.scheduler.arrived(request)
    assert not d.scheduler.step().renewals
    board = p.ranks[1].worker._lessor._board
    for number in (1, 2):
        now[0] += 16.0
        until(lambda: board.renewals(0, 1) == [number], d)
    assert d.scheduler.matched_tokens(request, 0) == (len(PROMPT), True)
    d.scheduler.allocated(request, [[5, 19, 18]], len(PROMPT))
    until(lambda: d.everyone("received", "d"), p, d)
    assert same(d, [5, 19, 18], 1, [7, 3, 12])
    assert board.renewals(0, 1) == [3]
    now[0] += 100.0
    assert not d.scheduler.step().renewals


def test_a_load_is_over_by_its_deadline(side: Callable[..., Side]) -> None:
    p, d = side(seed=1), side(seed=2, load_deadline_seconds=0.05)
    d.decode("d", PROMPT, p.prefill("p", PROMPT, [7, 3, 12]), [5, 19, 18])
    until(lambda: d.everyone("received", "d"), d)  # prefill never begins the lease
    assert d.ranks[0].failed == {5, 19, 18} and d.counted("loads_failed") == 1


def test_an_aborted_request_is_received_and_its_lease_given_back(side: Callable[..., Side]) -> None:
    p, d = side(seed=1), side(seed=2)
    d.decode("d", PROMPT, p.prefill("p", PROMPT, [7, 3, 12]), [5, 19, 18])
    d.turn()
    d.turn(ended={"d"})
    until(lambda: d.everyone("received", "d") and p.everyone("sent", "p"), p, d)
    assert d.counted("loads_cancelled") == 1 and p.counted("leases_done") == 1


def test_another_prompt_or_model_or_block_size_is_computed_here(side: Callable[..., Side]) -> None:
    p, d = side(seed=1), side(seed=2)
    params = p.prefill("p", PROMPT, [7, 3, 12])
    for name, tokens, change in (
        ("prompt", PROMPT[::-1], {}),
        ("shorter", PROMPT[:-1], {}),
        ("blocks", PROMPT, {"groups": [[0, [7, 3]]]}),
        ("groups", PROMPT, {"groups": [[0, [7, 3, 12]], [0, [7, 3, 12]]]}),
        ("stages", PROMPT, {"stages": 2}),
        ("version", PROMPT, {"version": 99}),
        ("ranks", PROMPT, {"ranks": []}),
    ):
        request = Request(name, tokens, {**params, "kvmend": {**params["kvmend"], **change}})
        assert d.scheduler.matched_tokens(request, 0) == (0, False)
        d.scheduler.allocated(request, [[1, 2, 3]], 0)
    assert not d.scheduler.step().loads


def test_caches_that_do_not_fit_fail_the_load_and_say_why(
    side: Callable[..., Side], caplog: pytest.LogCaptureFixture
) -> None:
    p, d = side(seed=1), side(seed=2, traits={"the dtype": "float16"})
    d.decode("d", PROMPT, p.prefill("p", PROMPT, [7, 3, 12]), [5, 19, 18])
    until(lambda: d.everyone("received", "d"), p, d)
    assert d.ranks[0].failed == {5, 19, 18} and d.counted("loads_incompatible") == 1
    assert "the dtype is 'int16' at prefill, 'float16' here" in caplog.text


def test_a_forged_offer_reaches_nothing_but_the_caches(side: Callable[..., Side]) -> None:
    p, d = side(seed=1), side(seed=2)
    params = p.prefill("p", PROMPT, [7, 3, 12])
    for number, (name, value) in enumerate({
        "groups": [[0, [7, 3, 2**40]]],
        "ranks": [["127.0.0.1:1", "1", "1000", 64]],
        "kv_heads": 5,
    }.items()):  # fmt: skip
        forged = {**params, "kvmend": {**params["kvmend"], name: value}}
        d.decode(f"d{number}", PROMPT, forged, [5, 19, 18])
        until(lambda: d.everyone("received", f"d{number}"), p, d)
    address = params["kvmend"]["ranks"][0]
    forged = {
        **params,
        "kvmend": {**params["kvmend"], "ranks": [[*address[:2], "7f0000000000", 64]]},
    }
    d.decode("address", PROMPT, forged, [5, 19, 18])
    until(lambda: d.everyone("received", "address"), p, d)
    assert d.ranks[0].failed == {5, 19, 18} and d.counted("loads") == 0


def test_requests_that_did_not_end_well_are_not_leased(side: Callable[..., Side]) -> None:
    p = side(seed=1)
    for status in ("FINISHED_ABORTED", "FINISHED_ERROR", "FINISHED_IGNORED"):
        request = Request("p", PROMPT, {"do_remote_decode": True}, 19, Status(status))
        assert p.scheduler.finished(request, [[1, 2, 3]]) is None
    assert p.scheduler.finished(Request("x", PROMPT, None), [[1]]) is None
    assert not p.pool.held


def test_staging_that_is_used_up_offers_nothing_until_it_is_given_back(
    side: Callable[..., Side],
) -> None:
    p = side(seed=1, staged_blocks=4)
    p.prefill("first", PROMPT, [7, 3, 12])
    finished = Request("second", PROMPT, {"do_remote_decode": True}, len(PROMPT),
                       Status("FINISHED_STOPPED"))  # fmt: skip
    assert p.scheduler.finished(finished, [[1, 2, 4]]) is None
    p.scheduler.ended({p.slots["first"]: 1})
    assert p.scheduler.finished(finished, [[1, 2, 4]])


def test_many_requests_at_once_keep_their_blocks_apart(side: Callable[..., Side]) -> None:
    p, d = side(2, seed=1), side(1, seed=2)
    order = (1 + np.random.default_rng(5).permutation(BLOCKS - 1)).tolist()
    wanted = {}
    for i in range(6):
        tokens = [i, *PROMPT[1:]]
        there, here = order[3 * i : 3 * i + 3], order[::-1][3 * i : 3 * i + 3]
        wanted[f"d{i}"] = (here, there)
        d.decode(f"d{i}", tokens, p.prefill(f"p{i}", tokens, there), here)
    until(lambda: all(d.everyone("received", name) for name in wanted), p, d)
    assert all(same(d, here, 1, there) for here, there in wanted.values())
    until(lambda: all(p.everyone("sent", f"p{i}") for i in range(6)), p, d)


@pytest.mark.parametrize(("p_stages", "d_stages"), [(1, 3), (3, 1), (2, 2), (2, 3), (3, 2)])
@pytest.mark.parametrize(("p_size", "d_size"), [(1, 1), (2, 1), (1, 4)])
def test_blocks_arrive_whatever_the_two_pipelines(
    side: Callable[..., Side], p_size: int, d_size: int, p_stages: int, d_stages: int
) -> None:
    p, d = side(p_size, seed=1, stages=p_stages), side(d_size, seed=2, stages=d_stages)
    d.decode("d", PROMPT, p.prefill("p", PROMPT, [7, 3, 12]), [5, 19, 18])
    until(lambda: d.everyone("received", "d") and p.everyone("sent", "p"), p, d)
    assert same(d, [5, 19, 18], 1, [7, 3, 12]) and untouched(d, 2, [5, 19, 18])
    assert not any(rank.failed for rank in d.ranks)
    assert p.counted("leases_done") == p_size * p_stages


def test_a_layer_that_no_stage_of_prefill_has_is_named(
    side: Callable[..., Side], caplog: pytest.LogCaptureFixture
) -> None:
    p, d = side(seed=1, stages=2), side(seed=2)
    params = p.prefill("p", PROMPT, [7, 3, 12])
    own = params["kvmend"]
    half = {**params, "kvmend": {**own, "ranks": [own["ranks"][0]] * 2}}
    d.decode("d", PROMPT, half, [5, 19, 18])
    until(lambda: d.everyone("received", "d"), p, d)
    assert d.ranks[0].failed == {5, 19, 18} and d.counted("loads_incompatible") == 1
    assert "rank 1 of 2 says it is" in caplog.text


# ----------------------------------------------------------------------------- several cache groups

WINDOWED = (Group(TOKENS), Group(TOKENS, WINDOW, TOKENS))  # as vLLM's for a window of one block
LONG = list(range(5 * TOKENS))  # its last token looks back at the block before


@pytest.mark.parametrize("staged", [(0, 0), (8, 0), (0, 8), (8, 8)])
def test_each_group_has_its_own_blocks_and_windows_only_the_last_ones(
    side: Callable[..., Side], staged: tuple[int, int]
) -> None:
    p = side(2, seed=1, groups=WINDOWED, staged_blocks=staged[0])
    d = side(1, seed=2, groups=WINDOWED, staged_blocks=staged[1])
    params = p.prefill("p", LONG, [7, 3, 12, 4, 8], [0, 0, 0, 6, 2])
    assert params["kvmend"]["tokens"] == len(LONG) - 1  # decode computes the last one
    d.decode("d", LONG, json.loads(json.dumps(params)), [5, 19, 18, 1, 2], [0, 0, 0, 3, 4])
    until(lambda: d.everyone("received", "d") and p.everyone("sent", "p"), p, d)
    assert not d.ranks[0].failed and not d.ranks[0].lost
    assert same(d, [5, 19, 18, 1, 2], 1, [7, 3, 12, 4, 8], 0)
    assert same(d, [3, 4], 1, [6, 2], 1)
    if not staged[1]:  # else whole blocks are copied: in vLLM, groups share memory, not blocks
        assert untouched(d, 2, [5, 19, 18, 1, 2], 0) and untouched(d, 2, [3, 4], 1)


def test_groups_may_have_blocks_of_different_sizes(side: Callable[..., Side]) -> None:
    groups = (Group(TOKENS), Group(2 * TOKENS, WINDOW, TOKENS))
    p, d = side(seed=1, groups=groups), side(seed=2, groups=groups)
    params = p.prefill("p", LONG, [7, 3, 12, 4, 8], [0, 6, 2])
    d.decode("d", LONG, params, [5, 19, 18, 1, 2], [0, 3, 4], computed=2 * TOKENS)
    until(lambda: d.everyone("received", "d"), p, d)
    assert same(d, [18, 1, 2], 1, [12, 4, 8], 0) and untouched(d, 2, [18, 1, 2], 0)
    assert same(d, [3, 4], 1, [6, 2], 1) and untouched(d, 2, [3, 4], 1)


def test_of_a_state_only_the_last_block_is_loaded(side: Callable[..., Side]) -> None:
    groups = (Group(TOKENS), Group(TOKENS, STATE))
    p, d = side(seed=1, groups=groups), side(seed=2, groups=groups)
    d.decode("d", LONG, p.prefill("p", LONG, [7, 3, 12, 4, 8], [0, 0, 0, 1, 6]),
             [5, 19, 18, 1, 2], [0, 0, 0, 0, 3])  # fmt: skip
    until(lambda: d.everyone("received", "d"), p, d)
    assert same(d, [5, 19, 18, 1, 2], 1, [7, 3, 12, 4, 8], 0)
    assert same(d, [3], 1, [6], 1) and untouched(d, 2, [3], 1)


def test_a_state_of_other_tokens_than_those_that_are_loaded_is_not_taken(
    side: Callable[..., Side],
) -> None:
    groups = (Group(TOKENS), Group(TOKENS, STATE))
    p, d = side(seed=1, groups=groups), side(seed=2, groups=groups)
    going = Request("p", list(PROMPT), {"do_remote_decode": True}, len(PROMPT) + 3,
                    Status("FINISHED_LENGTH_CAPPED"))  # fmt: skip
    assert p.scheduler.finished(going, [[7, 3, 12], [0, 0, 6]]) is None
    whole = Request("q", list(PROMPT), {"do_remote_decode": True, "kvmend_shortened": True})
    p.scheduler.arrived(whole)  # a client's word
    whole.num_computed_tokens, whole.status = len(PROMPT), Status("FINISHED_LENGTH_CAPPED")
    params = p.scheduler.finished(whole, [[7, 3, 12], [0, 0, 6]])
    assert params
    assert d.scheduler.matched_tokens(Request("d", PROMPT, params), 0) == (0, False)
    fewer = Request("fewer", LONG, p.prefill("r", LONG, [7, 3, 12, 4, 8], [0, 0, 0, 0, 6]))
    assert d.scheduler.matched_tokens(fewer, 0) == (len(LONG) - 1, True)
    d.scheduler.allocated(fewer, [[5, 19, 18, 1, 2], [0, 0, 0, 0, 3]], len(LONG) - 2)
    until(lambda: d.everyone("received", "fewer"), p, d)
    assert d.ranks[0].lost == {"fewer"}


def test_a_window_that_prefill_has_left_behind_is_computed_from_the_beginning(
    side: Callable[..., Side], caplog: pytest.LogCaptureFixture
) -> None:
    p, d = side(seed=1, groups=WINDOWED), side(seed=2, groups=WINDOWED)
    params = p.prefill("p", LONG, [7, 3, 12, 4, 8], [0, 0, 0, 0, 2])
    d.decode("d", LONG, params, [5, 19, 18, 1, 2], [0, 0, 0, 3, 4])
    until(lambda: d.everyone("received", "d"), p, d)
    assert d.ranks[0].lost == {"d"} and not d.ranks[0].failed
    assert "prefill has given away blocks that decode needs" in caplog.text
    assert untouched(d, 2, [])


def test_an_offer_that_lacks_the_first_blocks_fails_as_a_whole(side: Callable[..., Side]) -> None:
    """None of the blocks that decode has would be named else, and they would count as loaded."""
    p, d = side(seed=1), side(seed=2)
    params = p.prefill("p", PROMPT, [7, 3, 12])
    params["kvmend"]["groups"] = [[1, [3, 12]]]
    d.decode("d", PROMPT, params, [5, 19, 18])
    until(lambda: d.everyone("received", "d"), p, d)
    assert d.ranks[0].lost == {"d"} and d.counted("loads_incompatible") == 1


def test_failed_loads_of_several_groups_name_the_request_not_blocks(
    side: Callable[..., Side],
) -> None:
    """vLLM can't tell the blocks of groups apart."""
    p, d = side(seed=1, groups=WINDOWED, lease_seconds=0.001), side(seed=2, groups=WINDOWED)
    params = p.prefill("p", LONG, [7, 3, 12, 4, 8], [0, 0, 0, 6, 2])
    until(lambda: p.everyone("sent", "p"), p)
    d.decode("d", LONG, params, [5, 19, 18, 1, 2], [0, 0, 0, 3, 4])
    until(lambda: d.everyone("received", "d"), d)
    assert d.ranks[0].lost == {"d"} and not d.ranks[0].failed


def test_a_prompt_for_decode_is_prefilled_but_for_its_last_token_where_layers_look_back() -> None:
    for kind, left in ((FULL, 3), (WINDOW, 2), (STATE, 2)):
        scheduler = SchedulerSide(Settings(), (Group(TOKENS), Group(TOKENS, kind)))
        request = Request("p", [1, 2, 3], {"do_remote_decode": True})
        scheduler.arrived(request)
        scheduler.arrived(request)
        assert request.num_prompt_tokens == len(request.prompt_token_ids or ()) == left
        assert len(request._all_token_ids) == left
        for other in (Request("d", [1, 2, 3], {}), Request("one", [1], {"do_remote_decode": True})):
            scheduler.arrived(other)
            assert other.num_prompt_tokens == len(other._all_token_ids) != 2


# ---------------------------------------------------------------------------------- held blocks


def test_blocks_are_held_until_every_worker_has_ended_the_lease(side: Callable[..., Side]) -> None:
    """vLLM frees the request at once, so that it needn't step while a lease runs."""
    p = side(2, seed=1, groups=WINDOWED)
    p.prefill("a", LONG, [7, 3, 12, 4, 8], [0, 0, 0, 6, 2])
    p.prefill("b", PROMPT, [7, 3, 13], [0, 0, 1])
    assert p.pool.held == {7: 2, 3: 2, 12: 1, 4: 1, 8: 1, 6: 1, 2: 1, 13: 1, 1: 1}
    p.scheduler.ended({p.slots["a"]: 1})
    assert p.pool.held.total() == 11
    p.scheduler.ended({p.slots["a"]: 1, p.slots["b"]: 1})
    assert p.pool.held == {7: 1, 3: 1, 13: 1, 1: 1}
    p.scheduler.ended({p.slots["b"]: 1})
    assert not p.pool.held


def test_a_consumer_offers_nothing() -> None:
    scheduler = SchedulerSide(Settings(), GROUPS, serves=False)
    scheduler.bind(BlockCounts())
    request = Request("p", [1], {"do_remote_decode": True}, 1, Status("FINISHED_LENGTH_CAPPED"))
    assert scheduler.finished(request, [[3]]) is None


# ------------------------------------------------------------------------ prefill as a process apart

PREFILL = """
from kvmend.testing.vllm_rank import Side
side = Side(1, 1, engine=options)
def prefill(name, tokens, blocks):
    params = side.prefill(name, tokens, blocks)
    side.turn()
    return params
"""


@pytest.fixture
def prefill(start_peer: Callable[..., Peer]) -> Callable[..., Peer]:
    """Starts processes with a prefill instance; takes options of its engine."""

    def start(**options: Any) -> Peer:
        peer = start_peer(make_engine=False)
        peer.run(PREFILL, options=options)
        return peer

    return start


def offer(peer: Peer, name: str) -> dict[str, Any]:
    got: dict[str, Any] = peer.get(
        "prefill(name, tokens, blocks)", name=name, tokens=PROMPT, blocks=[7, 3, 12]
    )
    return got


def test_a_killed_prefill_fails_the_load_and_another_one_serves(
    side: Callable[..., Side], prefill: Callable[..., Peer]
) -> None:
    d, first = side(seed=2), prefill()
    d.decode("before", PROMPT, offer(first, "a"), [5, 19, 18])
    until(lambda: d.everyone("received", "before"), d)
    params = offer(first, "b")
    first.kill()
    d.decode("known", PROMPT, params, [1, 2, 3])
    until(lambda: d.everyone("received", "known"), d)
    assert d.ranks[0].failed == {1, 2, 3}
    d.decode("after", PROMPT, offer(prefill(), "a"), [8, 9, 10])
    until(lambda: d.everyone("received", "after"), d)
    assert same(d, [8, 9, 10], 1, [7, 3, 12]) and d.ranks[0].failed == {1, 2, 3}


def test_a_prefill_that_restarts_at_its_address_is_another_one(
    side: Callable[..., Side], prefill: Callable[..., Peer]
) -> None:
    d, first = side(seed=2), prefill()
    old = offer(first, "a")
    d.decode("before", PROMPT, old, [5, 19, 18])
    until(lambda: d.everyone("received", "before"), d)
    old = offer(first, "b")
    port = int(old["kvmend"]["ranks"][0][0].rsplit(":", 1)[1])
    first.kill()
    second = prefill(port=port)
    new = offer(second, "a")
    d.decode("old", PROMPT, old, [1, 2, 3])
    d.decode("new", PROMPT, new, [8, 9, 10])
    until(lambda: d.everyone("received", "old") and d.everyone("received", "new"), d)
    assert d.ranks[0].failed == {1, 2, 3} and same(d, [8, 9, 10], 1, [7, 3, 12])


def test_a_stopped_prefill_fails_the_load_by_its_deadline_and_serves_again(
    side: Callable[..., Side], prefill: Callable[..., Peer]
) -> None:
    d, peer = side(seed=2, load_deadline_seconds=1.0), prefill()
    d.decode("before", PROMPT, offer(peer, "a"), [5, 19, 18])
    until(lambda: d.everyone("received", "before"), d)
    params = offer(peer, "b")
    peer.stop()
    d.decode("during", PROMPT, params, [1, 2, 3])
    until(lambda: d.everyone("received", "during"), d)
    assert d.ranks[0].failed == {1, 2, 3} and untouched(d, 2, [5, 19, 18])
    peer.resume()
    attempts = 0

    def served() -> bool:  # the session may be under probation yet
        nonlocal attempts
        name = f"again {attempts}"
        if attempts and name not in d.ranks[0].received:
            return False
        if attempts and not d.ranks[0].failed:
            return True
        d.ranks[0].failed.clear()
        attempts += 1
        d.decode(f"again {attempts}", PROMPT, offer(peer, f"p{attempts}"), [11, 12, 13])
        return False

    until(served, d, what="a load from the prefill that came back")
    assert same(d, [11, 12, 13], 1, [7, 3, 12])
    assert untouched(d, 2, [5, 19, 18, 1, 2, 3, 11, 12, 13])


def test_loads_move_on_while_the_worker_is_busy(
    side: Callable[..., Side], prefill: Callable[..., Peer]
) -> None:
    """A forward pass may take seconds; no load waits for its end."""
    d, peer = side(seed=2), prefill()
    d.decode("d", PROMPT, offer(peer, "a"), [5, 19, 18])
    d.turn()
    mover = d.ranks[0].worker._mover
    wait_until(lambda: mover._ended, "the load, without a step")
    assert same(d, [5, 19, 18], 1, [7, 3, 12]) and not d.ranks[0].received
    d.turn()
    assert d.ranks[0].received == {"d"}
