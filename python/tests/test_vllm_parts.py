"""The pure parts of the vLLM connector: geometry, tensor parallelism, leases, offers."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvmend.vllm.descriptor import Descriptor
from kvmend.vllm.geometry import Incompatible, LayerGeometry, match
from kvmend.vllm.groups import STATE, WINDOW, Group, Held, Move, moves
from kvmend.vllm.leases import Board, LeaseState, lease_state, mark
from kvmend.vllm.lessor import Lessor
from kvmend.vllm.offers import BadOffer, Offer, RankAddress, prompt_digest
from kvmend.vllm.orders import LeaseOrder
from kvmend.vllm.parallel import Place, heads_of, readers, sources
from kvmend.vllm.settings import Settings
from kvmend.vllm.slots import Slots

SIZES = [(total, p, d) for total in (1, 2, 3, 4, 8) for p in (1, 2, 3, 4, 8, 16)
         for d in (1, 2, 3, 4, 8, 16)
         if all((total % s if total >= s else s % total) == 0 for s in (p, d))]  # fmt: skip


# ------------------------------------------------------------------------------- tensor parallelism


@pytest.mark.parametrize(("total", "p", "d"), SIZES)
def test_every_head_of_a_decode_rank_comes_from_a_rank_that_has_it(
    total: int, p: int, d: int
) -> None:
    for rank in range(d):
        ours, place = heads_of(rank, d, total), 0
        for source in sources(total, p, d, rank):
            assert source.our_head == place
            theirs = heads_of(source.rank, p, total)
            for i in range(source.heads):
                assert theirs[source.their_head + i] == ours[source.our_head + i]
            place += source.heads
        assert place == len(ours)


@pytest.mark.parametrize(("total", "p", "d"), SIZES)
def test_every_prefill_rank_hears_from_all_that_read_from_it_and_from_one_at_least(
    total: int, p: int, d: int
) -> None:
    for rank in range(p):
        expected = readers(total, p, d, rank)
        reading = [x for x in range(d) if any(s.rank == rank for s in sources(total, p, d, x))]
        assert expected and len(set(expected)) == len(expected)
        assert set(reading) <= set(expected) <= set(range(d))


def test_a_head_that_several_prefill_ranks_hold_is_read_from_different_ones() -> None:
    assert {sources(1, 4, 4, rank)[0].rank for rank in range(4)} == {0, 1, 2, 3}


def test_heads_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ValueError, match="3 KV heads"):
        heads_of(0, 2, 3)


# ---------------------------------------------------------------------------------------- geometry


def layout(array: np.ndarray[Any, Any], blocks: int) -> LayerGeometry:
    return LayerGeometry.of(
        "layer", array.ctypes.data, array.shape, array.strides, array.itemsize, blocks
    )


def test_a_whole_dense_block_is_one_run() -> None:
    cache = np.zeros((4, 3, 16, 8), np.float32)
    geometry = layout(cache, 4)
    runs = match(geometry, 0, geometry, 0, 3)
    assert runs.lengths.tolist() == [cache[0].nbytes] == [geometry.block_bytes]


def test_heads_of_a_heads_first_block_are_one_run() -> None:
    one, all_ = np.zeros((4, 1, 16, 8), np.float32), np.zeros((4, 3, 16, 8), np.float32)
    runs = match(layout(one, 4), 0, layout(all_, 4), 2, 1)
    assert (runs.here.tolist(), runs.there.tolist()) == ([0], [2 * 16 * 8 * 4])
    assert runs.lengths.tolist() == [16 * 8 * 4]


@given(st.permutations([1, 2]), st.permutations([1, 2]), st.sampled_from([1, 2]), st.data())
def test_runs_move_heads_between_any_two_layouts(
    here: list[int], there: list[int], kernel_blocks: int, data: st.DataObject
) -> None:
    """Layouts with heads or tokens first, and blocks that vLLM split for its kernels."""
    blocks, tokens, content = 3, 4, 5
    ours, theirs = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    heads = data.draw(st.integers(1, min(ours, theirs)))
    a0 = data.draw(st.integers(0, ours - heads))
    b0 = data.draw(st.integers(0, theirs - heads))
    rng = np.random.default_rng(7)

    def cache(count: int, order: list[int]) -> np.ndarray[Any, Any]:
        shape = (blocks * kernel_blocks, count, tokens, content)
        physical = [0, *order, 3]
        array = rng.integers(0, 255, [shape[i] for i in physical]).astype(np.int16)
        return array.transpose(np.argsort(physical))

    a, b = cache(ours, here), cache(theirs, there)
    want = a.copy()
    source, target = 1, 2
    for k in range(kernel_blocks):
        want[target * kernel_blocks + k, a0 : a0 + heads] = (
            b[source * kernel_blocks + k, b0 : b0 + heads]
        )  # fmt: skip
    ga, gb = layout(a, blocks), layout(b, blocks)
    runs = match(ga, a0, gb, b0, heads)
    flat_a = np.lib.stride_tricks.as_strided(a, (a.nbytes // 2,), (2,)).view(np.uint8)
    flat_b = np.lib.stride_tricks.as_strided(b, (b.nbytes // 2,), (2,)).view(np.uint8)
    for x, y, n in zip(*(r.tolist() for r in (runs.here, runs.there, runs.lengths)), strict=True):
        x, y = x + target * ga.block_stride, y + source * gb.block_stride
        flat_a[x : x + n] = flat_b[y : y + n]
    assert (a == want).all()


def test_layers_inside_one_block_keep_their_distance() -> None:
    """Blocks outermost, layers inside: a layer's view has gaps between blocks, none inside."""
    pool = np.zeros((6, 2, 3, 4, 8), np.float16)
    geometry = layout(pool[:, 1], 6)
    assert geometry.block_stride == pool[0].nbytes and geometry.block_bytes == pool[0, 0].nbytes


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(Incompatible, match=r"shape \(5, 2, 4, 8\) doesn't hold 4 blocks"):
        layout(np.zeros((5, 2, 4, 8)), 4)
    with pytest.raises(Incompatible, match="gaps"):
        layout(np.zeros((4, 8, 3))[:, ::2], 4)
    with pytest.raises(Incompatible, match=r"\(1, 4, 64\) here, \(1, 8, 64\) there"):
        match(layout(np.zeros((4, 2, 4, 8)), 4), 0, layout(np.zeros((4, 2, 8, 8)), 4), 0, 2)


# ------------------------------------------------------------------------------------ cache groups


def test_what_is_held_of_a_list_begins_after_its_last_null_block() -> None:
    window = Group(4, WINDOW, 6)
    assert Group(4).held([7, 8, 9, 3], 9) == Held(0, (7, 8, 9))
    assert window.held([0, 0, 9, 3], 15) == Held(2, (9, 3))
    assert window.held([5, 0, 9, 3], 15) == Held(2, (9, 3))
    assert window.held([0, 0, 0], 12) == Held(3, ())
    assert Group(4, STATE).held([0, 2, 0, 5], 15) == Held(0, (5,))
    assert Group(4, STATE).held([0, 0], 15) == Held(0, ())


def test_only_blocks_that_are_needed_and_not_there_yet_are_moved() -> None:
    window = Group(4, WINDOW, 6)
    held = Held(2, (7, 8, 9))
    assert moves(window, held, [0, 0, 0, 5, 6], 0, 20) == Move((8, 9), (5, 6))
    assert moves(window, held, [0, 0, 4, 5, 6, 1], 16, 20) == Move((9,), (6,))
    assert moves(window, held, [0, 3, 4, 5, 6], 0, 20) is None  # prefill has left it behind
    assert moves(window, held, [0, 0, 4, 5, 6, 1], 0, 21) is None  # or never had it
    assert moves(window, held, [0, 0, 4, 5], 0, 20) is None
    assert moves(Group(4, STATE), Held(0, (7,)), [0, 0, 4], 8, 12) == Move((7,), (4,))
    assert moves(Group(4, STATE), Held(0, ()), [0, 0, 4], 8, 12) is None


# ------------------------------------------------------------------------------------------ leases


def state(board: Board, slot: int, generation: int) -> LeaseState:
    return lease_state(*(int(w) for w in board.words[slot]), generation)


def test_a_lease_is_ahead_then_live_then_over_and_over_for_good() -> None:
    board = Board(4, 2)
    assert state(board, 1, 1) is LeaseState.AHEAD
    board.begin(1, 1)
    assert (state(board, 1, 1), state(board, 1, 2)) == (LeaseState.LIVE, LeaseState.AHEAD)
    board.end(1, 1)
    assert (state(board, 1, 1), state(board, 1, 2)) == (LeaseState.OVER, LeaseState.AHEAD)
    board.begin(1, 2)
    assert (state(board, 1, 1), state(board, 1, 2)) == (LeaseState.OVER, LeaseState.LIVE)


def test_a_word_that_was_read_while_it_changed_counts_as_nothing() -> None:
    assert lease_state(2, 2**64 - 1 - 4, 1) is LeaseState.TORN
    assert lease_state(0, 0, 1) is LeaseState.TORN


def test_a_lease_is_finished_when_every_reader_has_said_so_about_this_lease() -> None:
    board = Board(4, 4)
    board.done[2, 0] = mark(7, 2)
    board.done[2, 1] = mark(6, 2)  # of an earlier lease
    assert not board.finished(2, 7)
    board.done[2, 1] = mark(7, 2)
    assert board.finished(2, 7) and not board.finished(2, 8) and not board.finished(1, 7)


def test_the_lessor_ends_leases_by_word_and_by_time_and_says_so_once() -> None:
    now = [100.0]
    board, counts = Board(4, 2), {"leases": 0, "leases_done": 0, "leases_expired": 0}
    lessor = Lessor(board, lambda: now[0], counts)
    lessor.begin(LeaseOrder("a", 0, 1, 5.0, [1]))
    lessor.begin(LeaseOrder("b", 1, 1, 9.0, [2]))
    lessor.refuse(LeaseOrder("c", 2, 1, 9.0, [3]))
    assert state(board, 2, 1) is LeaseState.AHEAD
    assert lessor.ended() == {2} and state(board, 2, 1) is LeaseState.OVER
    board.done[1, 0] = mark(1, 1)
    assert lessor.ended() == {1} and state(board, 1, 1) is LeaseState.OVER
    now[0] = 104.9
    assert lessor.ended() == set() and state(board, 0, 1) is LeaseState.LIVE
    now[0] = 105.0
    assert lessor.ended() == {0} and state(board, 0, 1) is LeaseState.OVER
    assert lessor.ended() == set() and len(lessor) == 0
    assert counts == {"leases": 2, "leases_done": 1, "leases_expired": 2}


def test_a_lease_is_renewed_up_to_ten_times_its_length() -> None:
    now = [0.0]
    board, counts = Board(4, 2), {"leases": 0, "leases_done": 0, "leases_expired": 0}
    lessor = Lessor(board, lambda: now[0], counts)
    board.renewed[0, 1] = mark(6, 1)  # of an earlier lease
    lessor.begin(LeaseOrder("a", 0, 7, 10.0, [1]))
    for number in range(1, 13):
        now[0] = 9.0 * number
        board.renewed[0, 1] = mark(7, number)
        if now[0] >= 100:
            break
        assert not lessor.ended(), now
    now[0] = 100.0
    assert lessor.ended() == {0} and counts["leases_expired"] == 1


# ------------------------------------------------------------------------------------------ offers

OFFER = Offer(
    3, 9, 60.0, 8, 40, prompt_digest(range(40)), (Held(0, (5, 2, 9)), Held(2, (4,))), 1,
    (RankAddress("127.0.0.1:7001", 2**64 - 1, 2**47, 4000),),
)  # fmt: skip


def test_an_offer_survives_json() -> None:
    params = json.loads(json.dumps(OFFER.to_params()))
    assert params["do_remote_prefill"] is True and Offer.from_params(params) == OFFER


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values)
def test_no_parameters_raise_anything_but_bad_offer(value: Any) -> None:
    with pytest.raises(BadOffer):
        Offer.from_params({"kvmend": value})


@given(st.sampled_from(sorted(OFFER.to_params()["kvmend"])), json_values)
def test_one_senseless_value_is_a_bad_offer_or_another_offer(name: str, value: Any) -> None:
    params = OFFER.to_params()
    params["kvmend"][name] = value
    with contextlib.suppress(BadOffer):
        assert isinstance(Offer.from_params(params), Offer)


def test_a_digest_tells_prompts_and_adapters_apart() -> None:
    digests = {prompt_digest([1, 2]), prompt_digest([2, 1]), prompt_digest([1]),
               prompt_digest([1, 2], ["lora a"]), prompt_digest([1, 2], ["lora", "a"])}  # fmt: skip
    assert len(digests) == 5


# --------------------------------------------------------------------------------- the other values


def test_a_descriptor_survives_its_encoding_and_names_what_differs() -> None:
    layer = LayerGeometry.of("l0", 4096, (4, 2, 16, 8), (1024, 512, 32, 4), 4, 4)
    place = Place(0, 1, 1, 2)
    found = Descriptor(place, 2, 4, True, 1, 2, 3, 4, 5, (layer,), {"the dtype": "bfloat16"})
    assert Descriptor.decode(found.encode()) == found
    found.check({"the dtype": "bfloat16"})
    for traits, message in (
        ({"the dtype": "float16"}, "the dtype is 'bfloat16' at prefill, 'float16' here"),
        ({"the dtype": "bfloat16", "more": "1"}, "more is None at prefill, '1' here"),
    ):
        with pytest.raises(Incompatible, match=message):
            found.check(traits)


@given(st.binary(max_size=64) | json_values.map(lambda v: json.dumps(v).encode()))
def test_bytes_that_are_no_descriptor_are_incompatible(data: bytes) -> None:
    with pytest.raises(Incompatible):
        Descriptor.decode(data)


def test_settings_refuse_unknown_names_and_senseless_values() -> None:
    assert Settings.of({"lease_seconds": 5}).lease_seconds == 5
    with pytest.raises(ValueError, match="there is no 'lease'"):
        Settings.of({"lease": 5})
    with pytest.raises(ValueError, match="load_deadline_seconds is 0"):
        Settings.of({"load_deadline_seconds": 0})
    options = Settings.of({"engine": {"park_max": 9.0}, "host": "::1"}).engine_options()
    assert (options["park_max"], options["host"], options["insecure"]) == (9.0, "::1", False)


def test_slots_are_lent_whole_or_not_at_all() -> None:
    slots = Slots(3)
    assert slots.take(2) == [0, 1] and slots.take(2) is None and len(slots) == 1
    slots.give([1])
    assert slots.take(2) == [2, 1]
