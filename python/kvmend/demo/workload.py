"""What the demo moves: the interface of the real model and of the synthetic pages."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvmend import KVComponent, KVLayout, KVPool

from .pool import Pool

AUX_ROWS = 64
AUX_WORDS = 8  # of a row, int64: word 0 is the first token


@dataclass(frozen=True)
class Spec:
    """One request, as the router tells it to prefill and decode."""

    name: str
    tokens: int  # of the prompt
    seed: int = 0  # synthetic: what the pages hold
    max_new: int = 0  # model: longest answer

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Workload(Protocol):
    """One side's pages and what is done with them. Made anew in each process."""

    pool: Pool
    aux: npt.NDArray[np.int64]  # (AUX_ROWS, AUX_WORDS)
    page_tokens: int
    kv_heads: int
    head_dim: int
    dtype: str

    def prompt_pages(self, spec: Spec) -> int:
        """Pages that prefill sends."""

    def all_pages(self, spec: Spec) -> int:
        """Pages that decode needs: the prompt's, and room for the answer."""

    def prefill(
        self, spec: Spec, pages: list[int], aux_row: int, send: Callable[[list[int]], None]
    ) -> dict[str, Any]:
        """Computes the pages and hands them to `send`, chunk by chunk; what is to be checked."""

    def decode(
        self, spec: Spec, pages: list[int], aux_row: int
    ) -> Generator[None, None, dict[str, Any]]:
        """Continues from the pages, one step per `next`; returns what is to be checked."""


def layout_of(workload: Workload) -> KVLayout:
    """The pools of a workload as kvmend wants them described."""
    kv = KVComponent(
        list(workload.pool.array), workload.pool.item_len, dtype=workload.dtype, pool=KVPool.KV
    )
    aux = KVComponent([workload.aux], workload.aux[0].nbytes, dtype="int64", pool=KVPool.AUX)
    return KVLayout([kv, aux], workload.page_tokens, workload.kv_heads, workload.head_dim)


def make_workload(config: dict[str, Any]) -> Workload:
    """`config`: {"kind": "model" or "synthetic", ...the arguments of its class}."""
    arguments = dict(config)
    if arguments.pop("kind") == "model":
        from .model import ModelWorkload

        return ModelWorkload(**arguments)
    from .synthetic import SyntheticWorkload

    return SyntheticWorkload(**arguments)
