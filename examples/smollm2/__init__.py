"""SmolLM2-135M-Instruct in plain NumPy, with its KV cache in a paged pool.

The example shows what kvmend moves: one process computes the pages of a prompt (`prefill`),
another one continues from them (`decode`). See README.md for the picture.
"""

import os

# BLAS threads wait by spinning: on a busy machine two of them are several times slower than one.
# It works only before NumPy is imported; a value that is set already stays.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# ruff: noqa: E402
from .generate import PageCallback, Prefilled, decode, decode_step, generate, prefill
from .model import LlamaModel
from .paged_kv import PagedKVPool, PoolExhausted
from .prompts import PROMPTS, Prompt
from .tokenizer import SmolTokenizer
from .weights import ModelConfig, ModelNotFound, Weights, find_gguf, load_weights

__all__ = [
    "PROMPTS",
    "LlamaModel",
    "ModelConfig",
    "ModelNotFound",
    "PageCallback",
    "PagedKVPool",
    "PoolExhausted",
    "Prefilled",
    "Prompt",
    "SmolTokenizer",
    "Weights",
    "decode",
    "decode_step",
    "find_gguf",
    "generate",
    "load",
    "load_weights",
    "prefill",
]


def load(gguf_path=None, cache_dir=None) -> tuple[LlamaModel, SmolTokenizer]:
    """Load model and tokenizer together, reading the file once (see `load_weights`)."""
    weights = load_weights(gguf_path, cache_dir)
    return LlamaModel(weights), SmolTokenizer(weights.vocabulary)
