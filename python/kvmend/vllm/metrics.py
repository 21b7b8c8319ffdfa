"""vLLM's statistics and Prometheus metrics of the connector. Imports vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from . import counters

__all__ = ["KvmendMetrics", "KvmendStats"]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


@dataclass
class KvmendStats(KVConnectorStats):
    """Counts of an interval; `data` crosses processes."""

    def reset(self) -> None:
        self.data = counters.new()

    def aggregate(self, other: KVConnectorStats) -> KvmendStats:
        counters.add(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's periodic log line: what isn't zero."""
        found: dict[str, int | float] = {
            k: self.data[k] for k in counters.COUNTERS if self.data.get(k)
        }
        if seconds := self.data.get(counters.LOAD_SECONDS):
            found["mean load seconds"] = round(sum(seconds) / len(seconds), 4)
        return found

    def is_empty(self) -> bool:
        return not any(self.data.values())


class KvmendMetrics(KVConnectorPromMetrics):
    """`vllm:kvmend_<counter>_total`, and the histogram `vllm:kvmend_load_seconds`."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine: Any
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine)
        self._counters: dict[str, dict[int, Any]] = {}
        for name, meaning in counters.COUNTERS.items():
            metric = self._counter_cls(
                name=f"vllm:kvmend_{name}", documentation=meaning, labelnames=labelnames
            )
            self._counters[name] = {i: metric.labels(*v) for i, v in per_engine.items()}
        histogram = self._histogram_cls(
            name="vllm:kvmend_load_seconds",
            documentation="Seconds of a load that succeeded",
            buckets=BUCKETS,
            labelnames=labelnames,
        )
        self._seconds = {i: histogram.labels(*v) for i, v in per_engine.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, metrics in self._counters.items():
            if count := transfer_stats_data.get(name, 0):
                metrics[engine_idx].inc(count)
        for seconds in transfer_stats_data.get(counters.LOAD_SECONDS, ()):
            self._seconds[engine_idx].observe(seconds)
