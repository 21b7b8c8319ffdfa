"""Requests to vLLM's API. Standard library only."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import time
import urllib.error
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from instance import NAME

TOKENS = 24  # of an answer
TIMEOUT = 60.0  # seconds: longer than this is a hang

#: Text, or token ids.
Prompt = str | list[int]


def _example() -> ModuleType:
    """examples/vllm_pd/proxy.py: the cases use the example's router."""
    path = Path(__file__).resolve().parents[2] / "examples/vllm_pd/proxy.py"
    spec = importlib.util.spec_from_file_location("vllm_pd_proxy", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


proxy = _example()


@dataclass
class Answer:
    """Of a request; `status` 0: there was none."""

    status: int
    body: dict[str, Any]
    seconds: float


def request(prompt: Prompt, tokens: int = TOKENS) -> dict[str, Any]:
    return {
        "model": NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip


def send(url: str, body: dict[str, Any], timeout: float = TIMEOUT) -> Answer:
    start = time.monotonic()
    try:
        with proxy.post(url + "/v1/completions", body, timeout) as response:
            found, status = json.load(response), response.status
    except urllib.error.HTTPError as error:
        found, status = {"error": error.read().decode(errors="replace")[:500]}, error.code
    except (OSError, ValueError) as error:
        found, status = {"error": f"{type(error).__name__}: {error}"}, 0
    return Answer(status, found, time.monotonic() - start)


def ask(url: str, prompt: Prompt) -> Answer:
    """A whole request to one instance or to a proxy."""
    return send(url, request(prompt))


def tokens_of(answer: Answer) -> list[int]:
    """Token ids; empty if the request failed."""
    if answer.status != 200:
        return []
    found: list[int] = answer.body["choices"][0]["token_ids"]
    return found


def prefill(url: str, prompt: Prompt) -> dict[str, Any]:
    """The proxy's first half; what prefill replied."""
    answer = send(url, proxy.prefill_body(request(prompt)))
    assert answer.status == 200, answer.body
    return answer.body


def decode(url: str, prompt: Prompt, reply: dict[str, Any]) -> Answer:
    """The proxy's second half."""
    return send(url, proxy.decode_body(request(prompt), reply))


def later(call: Any, *args: Any) -> concurrent.futures.Future[Answer]:
    """The call, in a thread."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
        return pool.submit(call, *args)
    finally:
        pool.shutdown(wait=False)


def reset_prefix_cache(url: str) -> None:
    """vLLM's development endpoint (VLLM_SERVER_DEV_MODE=1)."""
    with proxy.post(url + "/reset_prefix_cache", {}, 10):
        pass
