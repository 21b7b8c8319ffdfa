"""Greedy generation in two halves: `prefill` fills pages, `decode` continues from them.

The halves share nothing but the pages, the first token and the position. So they may run in two
processes, with kvmend between them, and still give the same tokens as one process, bit for bit:
pages are float32 and copied exactly, and every step does the same arithmetic in both cases.
For that, the weights, `chunk_tokens`, and the BLAS library with its kernels and number of threads
must be equal (OPENBLAS_CORETYPE and OPENBLAS_NUM_THREADS, before NumPy is imported).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .model import LlamaModel
from .paged_kv import PagedKVPool

# (first page, one past the last page, whether these are the last): indices into the request's
# page list, not page numbers of the pool.
PageCallback = Callable[[int, int, bool], None]


class Prefilled(NamedTuple):
    """What prefill leaves behind, beside the pages."""

    first_token: int  # the first token of the answer
    logits: np.ndarray  # (vocab,), the scores it was chosen from


def prefill(
    model: LlamaModel,
    pool: PagedKVPool,
    tokens: Sequence[int],
    pages: Sequence[int],
    chunk_tokens: int | None = None,
    on_chunk: PageCallback | None = None,
) -> Prefilled:
    """Compute the KV of a prompt into `pages` and choose the answer's first token.

    `pages`: page numbers from `pool.alloc`, at least `pool.pages_for(len(tokens))`; page `i`
    of the list holds tokens `i * page_tokens` and on.
    `chunk_tokens`: tokens per step; None means all in one. It need not be a multiple of the
    page size. Another value may change the last bits of the KV.
    `on_chunk(first, last_exclusive, is_last)`: called in order after each chunk that completed
    pages, with those pages: send `pages[first:last_exclusive]`. The last call (`is_last`) takes
    the rest, a partly filled page included; calls cover each used page exactly once. The first
    token is not known yet during calls. What it raises ends prefill.

    Raises ValueError as `LlamaModel.forward` does, before anything is computed.
    """
    total = len(tokens)
    step = total if chunk_tokens is None else chunk_tokens
    if total and step < 1:
        raise ValueError(f"chunk_tokens must be at least 1, not {chunk_tokens}")
    pool.slots(pages, 0, total)  # too few pages are an error now, not after half of the work
    if not total:
        raise ValueError("at least one token is needed")
    sent = 0
    for start in range(0, total, step):
        end = min(start + step, total)
        hidden = model.forward(tokens[start:end], start, pool, pages)
        is_last = end == total
        complete = pool.pages_for(end) if is_last else end // pool.page_tokens
        if on_chunk is not None and complete > sent:
            on_chunk(sent, complete, is_last)
        sent = complete
    logits = model.logits(hidden[-1])
    return Prefilled(int(logits.argmax()), logits)


def decode_step(
    model: LlamaModel, pool: PagedKVPool, pages: Sequence[int], position: int, token: int
) -> tuple[int, np.ndarray]:
    """Run `token` at `position`; return the next token and the scores `(vocab,)` behind it.

    `pages` must hold the KV of all positions below `position` and have room for this one.
    """
    hidden = model.forward([token], position, pool, pages)
    logits = model.logits(hidden[0])
    return int(logits.argmax()), logits


def decode(
    model: LlamaModel,
    pool: PagedKVPool,
    pages: Sequence[int],
    position: int,
    first_token: int,
    max_new_tokens: int,
    stop_ids: Collection[int] = (),
) -> Iterator[int]:
    """Yield the answer's tokens, `first_token` first, greedily.

    `position`: number of tokens in the prompt, all of whose KV is in `pages`.
    `max_new_tokens`: most tokens to yield, `first_token` included; `pages` must have room for
    `position + max_new_tokens - 1` tokens, else ValueError at the first step.
    `stop_ids`: the first of these ends the answer and is not yielded.
    """
    if max_new_tokens > 0:
        pool.slots(pages, position, max_new_tokens - 1)
    token = first_token
    for i in range(max_new_tokens):
        if token in stop_ids:
            return
        yield token
        if i + 1 < max_new_tokens:
            token, _ = decode_step(model, pool, pages, position + i, token)


def generate(
    model: LlamaModel,
    pool: PagedKVPool,
    tokens: Sequence[int],
    max_new_tokens: int,
    stop_ids: Collection[int] = (),
    chunk_tokens: int | None = None,
) -> list[int]:
    """The whole answer to a prompt in one process: what a split run must reproduce.

    Takes its pages from `pool` and gives them back; raises PoolExhausted when they don't
    suffice.
    """
    pages = pool.alloc(pool.pages_for(len(tokens) + max(0, max_new_tokens - 1)))
    try:
        first = prefill(model, pool, tokens, pages, chunk_tokens).first_token
        answer = decode(model, pool, pages, len(tokens), first, max_new_tokens, stop_ids)
        return list(answer)
    finally:
        pool.free(pages)
