"""The page pool: allocation, addressing, and memory that belongs to the caller."""

import numpy as np
import pytest
from smollm2 import PagedKVPool, PoolExhausted


def make_pool(**changes):
    sizes = dict(num_pages=6, page_tokens=4, layers=2, kv_heads=3, head_dim=8)
    return PagedKVPool(**{**sizes, **changes})


def test_geometry_is_what_a_transfer_needs():
    pool = make_pool()
    assert len(pool.buffers) == 4
    assert pool.item_len == 4 * 3 * 8 * 4
    assert pool.page_bytes == 4 * pool.item_len
    for buffer in pool.buffers:
        assert buffer.shape == (6, 4, 3, 8)
        assert buffer.dtype == np.float32
        assert buffer.flags.c_contiguous
        assert buffer.strides[0] == pool.item_len


def test_alloc_and_free():
    pool = make_pool()
    first = pool.alloc(4)
    assert sorted(first) == [0, 1, 2, 3]
    with pytest.raises(PoolExhausted, match="3 pages wanted, 2 of 6 free"):
        pool.alloc(3)
    assert pool.free_pages == 2
    pool.free(first[1:3])
    assert sorted(pool.alloc(4)) == [1, 2, 4, 5]
    assert pool.alloc(0) == []


@pytest.mark.parametrize("pages", [[5], [-1], [6], [0, 0], [0, 5]])
def test_wrong_free_changes_nothing(pages):
    pool = make_pool()
    pool.alloc(2)
    with pytest.raises(ValueError, match="page"):
        pool.free(pages)
    assert pool.free_pages == 4


@pytest.mark.parametrize("name", ["num_pages", "page_tokens", "layers", "kv_heads", "head_dim"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(ValueError, match=name):
        make_pool(**{name: 0})


def test_pages_for():
    pool = make_pool()
    assert [pool.pages_for(n) for n in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]


def test_what_is_written_is_read_back_over_scattered_pages():
    pool = make_pool()
    rng = np.random.default_rng(1)
    k, v = rng.standard_normal((2, 10, 3, 8)).astype(np.float32)
    pages = [4, 0, 3]
    pool.write(1, pool.slots(pages, 0, 7), k[:7], v[:7])
    pool.write(1, pool.slots(pages, 7, 3), k[7:], v[7:])
    got_k, got_v = pool.read(1, pages, 10)
    np.testing.assert_array_equal(got_k, k)
    np.testing.assert_array_equal(got_v, v)
    # Token 5 is the second one of the second page: K of layer 1 is buffer 1, V is buffer 3.
    np.testing.assert_array_equal(pool.buffers[1][0, 1], k[5])
    np.testing.assert_array_equal(pool.buffers[3][0, 1], v[5])
    assert not pool.buffers[0].any() and not pool.buffers[2].any()


@pytest.mark.parametrize(("pages", "start", "count"), [([0], 0, 5), ([0], 4, 1), ([0], -1, 1)])
def test_slots_outside_the_pages_are_refused(pages, start, count):
    with pytest.raises(ValueError, match="do not fit"):
        make_pool().slots(pages, start, count)


@pytest.mark.parametrize("page", [-1, 6])
def test_slots_outside_the_pool_are_refused(page):
    with pytest.raises(ValueError, match="outside"):
        make_pool().slots([0, page], 0, 8)


def test_callers_memory_is_used_in_place():
    size = 6 * make_pool().item_len
    memory = [bytearray(size) for _ in range(4)]
    pool = make_pool(buffers=memory)
    pool.buffers[2][5, 3, 2, 7] = 1.0
    assert memory[2][-4:] == np.float32(1.0).tobytes()
    again = make_pool(buffers=pool.buffers)
    assert again.buffers[2][5, 3, 2, 7] == 1.0


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ([bytearray(2304)] * 3, "4 buffers wanted"),
        ([bytearray(2304)] * 3 + [bytearray(2300)], "buffer 3 has 2300 bytes, 2304 wanted"),
        ([bytes(2304)] * 4, "buffer 0 must be writable"),
        ([np.zeros((8, 144), np.float32)[:, ::2]] * 4, "C-contiguous"),
    ],
)
def test_unfit_memory_is_refused(memory, message):
    with pytest.raises(ValueError, match=message):
        make_pool(buffers=memory)
