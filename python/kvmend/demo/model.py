"""The real thing: SmolLM2-135M-Instruct from examples/smollm2, its KV in kvmend's pages."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from .pool import Pool
from .workload import AUX_ROWS, AUX_WORDS, Spec

PAGE_TOKENS = 16
CHUNK_TOKENS = 128  # prefill computes and sends so many tokens at a time


class NoModel(RuntimeError):
    """The model or its example can't be had; the message says what to do."""


def smollm2() -> ModuleType:
    """The package examples/smollm2 of this checkout."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "examples" / "smollm2").is_dir():
        raise NoModel("examples/smollm2 isn't here: run from a checkout, or use --synthetic")
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return importlib.import_module("examples.smollm2")


def cache_dir() -> Path:
    """Where the expanded weights (538 MB) are kept between runs, shared by the processes."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvmend" / "smollm2"


@functools.cache
def load() -> tuple[Any, Any]:
    """Model and tokenizer; expands the weights the first time. Raises NoModel."""
    package = smollm2()
    try:
        loaded: tuple[Any, Any] = package.load(cache_dir=cache_dir())
    except (package.ModelNotFound, OSError, ImportError) as error:
        raise NoModel(str(error)) from error
    return loaded


class ModelWorkload:
    """Prefill computes pages chunk by chunk; decode continues the text, token by token."""

    page_tokens = PAGE_TOKENS
    dtype = "float32"

    def __init__(self, pool_pages: int) -> None:
        self._package = smollm2()
        self._model, self._tokenizer = load()
        config = self._model.config
        self.kv_heads: int = config.kv_heads
        self.head_dim: int = config.head_dim
        item_len = PAGE_TOKENS * config.kv_heads * config.head_dim * 4
        self.pool = Pool(2 * config.layers, pool_pages, item_len)
        self.aux: npt.NDArray[np.int64] = np.zeros((AUX_ROWS, AUX_WORDS), np.int64)
        self._paged = self._model.new_pool(pool_pages, PAGE_TOKENS, list(self.pool.array))

    def prompt_pages(self, spec: Spec) -> int:
        return -(-spec.tokens // PAGE_TOKENS)

    def all_pages(self, spec: Spec) -> int:
        return -(-(spec.tokens + spec.max_new - 1) // PAGE_TOKENS)

    def prefill(
        self, spec: Spec, pages: list[int], aux_row: int, send: Callable[[list[int]], None]
    ) -> dict[str, Any]:
        tokens = encode(self._package, self._tokenizer, spec.name)
        last: list[int] = []

        def on_chunk(first: int, end: int, is_last: bool) -> None:
            if is_last:  # it brings aux along, and so waits for the first token
                last.extend(pages[first:end])
            else:
                send(pages[first:end])

        done = self._package.prefill(
            self._model, self._paged, tokens, pages, CHUNK_TOKENS, on_chunk
        )
        self.aux[aux_row, :2] = done.first_token, len(tokens)
        send(last)
        return {}

    def decode(
        self, spec: Spec, pages: list[int], aux_row: int
    ) -> Generator[None, None, dict[str, Any]]:
        first_token, position = (int(word) for word in self.aux[aux_row, :2])
        answer: list[int] = []
        stream = self._package.decode(
            self._model,
            self._paged,
            pages,
            position,
            first_token,
            spec.max_new,
            self._tokenizer.stop_ids,
        )
        for token in stream:
            answer.append(token)
            yield
        return {"tokens": answer, "text": self._tokenizer.decode(answer)}


def encode(package: ModuleType, tokenizer: Any, name: str) -> list[int]:
    """Token ids of the sample prompt of that name."""
    prompt = next(p for p in package.PROMPTS if p.name == name)
    tokens: list[int] = tokenizer.encode_chat(prompt.user, prompt.system)
    return tokens


def specs() -> list[Spec]:
    """The sample prompts, long and short in turn."""
    package = smollm2()
    _, tokenizer = load()
    every = [
        Spec(p.name, len(encode(package, tokenizer, p.name)), max_new=p.max_new_tokens)
        for p in package.PROMPTS
    ]
    half = len(every) // 2
    return [spec for pair in zip(every[:half], every[:half - 1:-1], strict=False) for spec in pair]


def reference(spec: Spec) -> list[int]:
    """What one process alone answers, without kvmend."""
    package = smollm2()
    model, tokenizer = load()
    tokens = encode(package, tokenizer, spec.name)
    pool = model.new_pool(-(-(len(tokens) + spec.max_new) // PAGE_TOKENS), PAGE_TOKENS)
    answer: list[int] = package.generate(
        model, pool, tokens, spec.max_new, tokenizer.stop_ids, CHUNK_TOKENS
    )
    return answer
