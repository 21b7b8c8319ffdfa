"""The forward pass against a slow reference, and the split of prefill and decode.

All on a tiny model with random weights, so that it takes no time.
"""

import numpy as np
import pytest
from smollm2 import PoolExhausted, decode, decode_step, generate, prefill
from smollm2.weights import unpermute_rope

PROMPT = [7, 3, 49, 0, 12, 12, 31, 5, 8, 22, 41]


def permute_rope(weight, heads):
    """What the conversion of a checkpoint to GGUF does with q and k, `(heads * dim, in)`."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def reference_logits(w, tokens):
    """Logits after the last token in float64, one head and position at a time.

    Uses GGUF's row order and GGUF's RoPE, which turns neighbours.
    """
    c = w.config
    d, group = c.head_dim, c.heads // c.kv_heads

    def norm(x, weight):
        return x / np.sqrt((x**2).mean() + c.norm_eps) * weight

    def rope(x, position):
        out = x.copy()
        for i in range(0, d, 2):
            angle = position * c.rope_base ** (-i / d)
            out[i] = x[i] * np.cos(angle) - x[i + 1] * np.sin(angle)
            out[i + 1] = x[i] * np.sin(angle) + x[i + 1] * np.cos(angle)
        return out

    xs = [w.embedding[t].astype(np.float64) for t in tokens]
    for layer in w.layers:
        q_end, k_end = c.heads * d, (c.heads + c.kv_heads) * d
        wq, wk, wv = np.split(layer.qkv.T.astype(np.float64), [q_end, k_end])
        wq, wk = permute_rope(wq, c.heads), permute_rope(wk, c.kv_heads)
        keys, values, after = [], [], []
        for position, x in enumerate(xs):
            n = norm(x, layer.attn_norm)
            keys.append([rope(k, position) for k in (wk @ n).reshape(c.kv_heads, d)])
            values.append((wv @ n).reshape(c.kv_heads, d))
            heads = []
            for h, q in enumerate((wq @ n).reshape(c.heads, d)):
                q = rope(q, position)
                p = np.exp([q @ k[h // group] / np.sqrt(d) for k in keys])
                p /= p.sum()
                heads.append(sum(a * v[h // group] for a, v in zip(p, values, strict=True)))
            x = x + np.concatenate(heads) @ layer.attn_out
            n = norm(x, layer.ffn_norm)
            gate, up = np.split(n @ layer.gate_up, 2)
            after.append(x + (gate / (1 + np.exp(-gate)) * up) @ layer.down)
        xs = after
    return w.embedding @ norm(xs[-1], w.final_norm)


def test_unpermute_undoes_the_conversion():
    weight = np.arange(32 * 3).reshape(32, 3)
    np.testing.assert_array_equal(unpermute_rope(permute_rope(weight, 4), 4), weight)


@pytest.mark.parametrize("chunk", [None, 1, 3, 4])
def test_logits_equal_the_reference(tiny, tiny_weights, chunk):
    pool = tiny.new_pool(8, page_tokens=4)
    _, logits = prefill(tiny, pool, PROMPT, [5, 1, 6], chunk)
    np.testing.assert_allclose(logits, reference_logits(tiny_weights, PROMPT), atol=2e-4)


def test_decode_steps_equal_the_reference(tiny, tiny_weights):
    pool = tiny.new_pool(8, page_tokens=4)
    pages = [5, 1, 6, 2]
    token = prefill(tiny, pool, PROMPT, pages).first_token
    tokens = list(PROMPT)
    for _ in range(4):
        tokens.append(token)
        token, logits = decode_step(tiny, pool, pages, len(tokens) - 1, token)
        np.testing.assert_allclose(logits, reference_logits(tiny_weights, tokens), atol=2e-4)


@pytest.mark.parametrize(
    ("tokens", "chunk", "calls"),
    [
        (11, None, [(0, 3, True)]),
        (11, 4, [(0, 1, False), (1, 2, False), (2, 3, True)]),
        (12, 4, [(0, 1, False), (1, 2, False), (2, 3, True)]),
        (11, 3, [(0, 1, False), (1, 2, False), (2, 3, True)]),  # ends at 3, 6, 9, 11
        (8, 5, [(0, 1, False), (1, 2, True)]),
        (3, 2, [(0, 1, True)]),
        (1, 100, [(0, 1, True)]),
        (11, 8, [(0, 2, False), (2, 3, True)]),
    ],
)
def test_on_chunk_covers_every_page_once(tiny, tokens, chunk, calls):
    pool = tiny.new_pool(3, page_tokens=4)
    seen = []
    prefill(tiny, pool, (PROMPT * 2)[:tokens], [0, 1, 2], chunk, lambda *call: seen.append(call))
    assert seen == calls


def test_pages_handed_out_are_complete(tiny):
    """A page must not change after on_chunk has announced it."""
    pool = tiny.new_pool(3, page_tokens=4)
    sent = {}

    def send(first, last, _):
        for page in range(first, last):
            sent[page] = [buffer[page].copy() for buffer in pool.buffers]

    prefill(tiny, pool, PROMPT, [0, 1, 2], 3, send)
    for page, pieces in sent.items():
        for piece, buffer in zip(pieces, pool.buffers, strict=True):
            np.testing.assert_array_equal(piece, buffer[page])


def test_error_in_on_chunk_ends_prefill(tiny):
    def fail(*_):
        raise ConnectionError("peer is gone")

    with pytest.raises(ConnectionError, match="peer is gone"):
        prefill(tiny, tiny.new_pool(3, page_tokens=4), PROMPT, [0, 1, 2], 4, fail)


def unaligned_copy(pool_buffers):
    """Zeroed memory for another pool that starts 4 bytes off any larger alignment."""
    return [np.zeros(b.size + 1, np.float32)[1:].reshape(b.shape) for b in pool_buffers]


def test_pages_moved_elsewhere_decode_to_the_same_bits(tiny):
    source = tiny.new_pool(8, page_tokens=4)
    pages = [0, 1, 2, 3, 4]
    first = prefill(tiny, source, PROMPT, pages, 4).first_token
    target_model = tiny.new_pool(9, page_tokens=4)
    target = tiny.new_pool(9, page_tokens=4, buffers=unaligned_copy(target_model.buffers))
    for buffer in target.buffers:
        buffer[:] = np.nan  # what a page held before must not matter
    moved = [8, 2, 5, 0, 7]
    for there, here in zip(target.buffers, source.buffers, strict=True):
        there[moved[:3]] = here[pages[:3]]
    position, token = len(PROMPT), first
    for _ in range(8):
        here, here_logits = decode_step(tiny, source, pages, position, token)
        there, there_logits = decode_step(tiny, target, moved, position, token)
        np.testing.assert_array_equal(here_logits, there_logits)
        position, token = position + 1, here
        assert here == there


def test_decode_yields_the_first_token_and_stops(tiny):
    pool = tiny.new_pool(8, page_tokens=4)
    pages = pool.alloc(5)
    first = prefill(tiny, pool, PROMPT, pages).first_token

    def run(limit, stop=()):
        return list(decode(tiny, pool, pages, len(PROMPT), first, limit, stop))

    answer = run(9)
    assert len(answer) == 9 and answer[0] == first
    assert run(1) == [first]
    assert run(0) == []
    assert run(9, {first}) == []
    stop = answer[4]
    assert run(9, {stop}) == answer[: answer.index(stop)]


def test_generate_is_prefill_and_decode_and_gives_its_pages_back(tiny):
    pool = tiny.new_pool(8, page_tokens=4)
    pages = pool.alloc(5)
    first = prefill(tiny, pool, PROMPT, pages, 4).first_token
    expected = list(decode(tiny, pool, pages, len(PROMPT), first, 9))
    pool.free(pages)
    assert generate(tiny, pool, PROMPT, 9, chunk_tokens=4) == expected
    assert pool.free_pages == 8
    with pytest.raises(PoolExhausted):
        generate(tiny, pool, PROMPT, 30)
    assert pool.free_pages == 8


@pytest.mark.parametrize(
    ("tokens", "pages", "chunk", "message"),
    [
        ([], [0], None, "at least one token"),
        ([], [0], 4, "at least one token"),
        ([50], [0], None, "outside 0..49"),
        ([-1], [0], None, "outside 0..49"),
        ([1] * 9, [0, 1], None, "do not fit in 2 pages"),
        ([1] * 4, [8], None, "outside 0..7"),
        ([1] * 4, [0], 0, "chunk_tokens"),
        ([1] * 65, list(range(8)) * 3, None, "context of 64"),
    ],
)
def test_bad_input_is_refused(tiny, tokens, pages, chunk, message):
    with pytest.raises(ValueError, match=message):
        prefill(tiny, tiny.new_pool(8, page_tokens=4), tokens, pages, chunk)


def test_decode_without_room_is_refused_before_the_first_token(tiny):
    pool = tiny.new_pool(8, page_tokens=4)
    with pytest.raises(ValueError, match="do not fit"):
        next(decode(tiny, pool, [0, 1, 2], 11, 1, max_new_tokens=3))
