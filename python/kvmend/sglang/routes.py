"""Questions to a bootstrap server."""

from __future__ import annotations

import logging
from typing import Any

import requests

__all__ = ["PREFIX", "ask_rank", "is_stock"]

logger = logging.getLogger("kvmend.sglang")

#: Put between host:port and /route by both of our ends: another backend's server has no such path.
PREFIX = "/kvmend"

TIMEOUT = 5.0  # seconds, as SGLang's own questions


def ask_rank(address: str, dp: int, cp: int, tp: int, pp: int) -> dict[str, Any] | None:
    """Where a prefill rank's engine listens: `rank_ip`, `rank_port`; and what was asked. None when the server doesn't know or doesn't answer; the log says which."""
    asked = {
        "prefill_dp_rank": dp,
        "prefill_cp_rank": cp,
        "target_tp_rank": tp,
        "target_pp_rank": pp,
    }
    try:
        answer = requests.get(f"http://{address}{PREFIX}/route", params=asked, timeout=TIMEOUT)
        if answer.status_code == 200:
            return {**answer.json(), "pp_rank": pp, "asked": (dp, cp, tp, pp)}
        logger.error("%s: %d, %s", address, answer.status_code, answer.text)
    except (requests.RequestException, ValueError) as error:
        logger.error("%s: %s", address, error)
    return None


def is_stock(address: str) -> bool:
    """Whether the bootstrap server of another backend answers there."""
    everything = "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
    try:
        answer = requests.get(f"http://{address}/route?{everything}", timeout=TIMEOUT)
        return answer.status_code == 200 and "attn_tp_size" in answer.json()
    except (requests.RequestException, ValueError):
        return False
