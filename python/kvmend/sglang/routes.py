"""What is said between a bootstrap server and those who ask it, or register with it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import requests

__all__ = ["PREFIX", "Registration", "ask_rank", "is_stock", "question_error", "registration_error"]

logger = logging.getLogger("kvmend.sglang")

#: Put between host:port and /route by both of our ends: another backend's server has no such path.
PREFIX = "/kvmend"

TIMEOUT = 5.0  # seconds, as SGLang's own questions


#: What a registration says in numbers: each rank with its size, and the port.
_RANKS = ("attn_tp", "attn_cp", "attn_dp", "pp", "system_dp")
_QUESTION = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
#: Ranks of one kind, more than anybody has.
_MOST = 1 << 16


def registration_error(row: Any) -> str | None:
    """What is wrong with the body of `PUT /route`, or None."""
    if not isinstance(row, dict):
        return f"a registration is a JSON object, not {type(row).__name__}"
    for name in _RANKS:
        rank, size = row.get(f"{name}_rank"), row.get(f"{name}_size")
        if not (type(rank) is int and type(size) is int and 0 <= rank < size <= _MOST):
            return f"{name}_rank {rank!r:.50} of {name}_size {size!r:.50}"
    port = row.get("rank_port")
    if type(port) is not int or not 0 < port < 1 << 16:
        return f"rank_port {port!r:.50}"
    if not isinstance(row.get("rank_ip"), str):
        return f"rank_ip {row.get('rank_ip')!r:.50}"
    if type(row.get("page_size")) is not int:
        return f"page_size {row.get('page_size')!r:.50}"
    http = row.get("prefill_http_port")
    if http is not None and type(http) is not int:
        return f"prefill_http_port {http!r:.50}"
    if "kv_cache_dtype" not in row:
        return "kv_cache_dtype is missing"
    return None


def question_error(query: Mapping[str, str]) -> str | None:
    """What is wrong with the query of `GET /route`, or None."""
    for name in _QUESTION:
        text = query.get(name, "")
        if not text.lstrip("-").isdecimal() or len(text) > 9:
            return f"{name}={text!r:.50} must be a number"
    return None


class Registration:
    """Tells the bootstrap server of a prefill rank, and goes on until it has listened.

    The first attempt is made at once; the others by a thread, after
    `FIRST` seconds and then ever more rarely, up to every `LONGEST` seconds. Stock SGLang gives up after about 15 s, for good.
    """

    FIRST = 1.0  # seconds
    LONGEST = 10.0

    def __init__(self, url: str, row: dict[str, Any]) -> None:
        self._url, self._row = url, row
        self._stop = threading.Event()
        self.thread: threading.Thread | None = None  #: while there are attempts left to make
        if not self._attempt():
            self.thread = threading.Thread(target=self._run, name="KvmendRegister", daemon=True)
            self.thread.start()

    def stop(self) -> None:
        """Ends the attempts; waits a little for one that runs."""
        self._stop.set()
        if self.thread is not None:
            self.thread.join(timeout=1.0)

    def _attempt(self) -> bool:
        try:
            answer = requests.put(self._url, json=self._row, timeout=TIMEOUT)
        except requests.RequestException as error:
            logger.warning("%s doesn't take this prefill rank yet: %s", self._url, error)
            return False
        if answer.status_code == 200:
            return True
        logger.warning("%s: %d, %s", self._url, answer.status_code, answer.text[:500])
        return False

    def _run(self) -> None:
        delay = self.FIRST
        while not self._stop.wait(delay):
            if self._attempt():
                logger.info("%s knows this prefill rank now", self._url)
                return
            delay = min(delay * 1.5, self.LONGEST)


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
