"""The router of examples/vllm_pd, between make-believe instances."""

from __future__ import annotations

import http.client
import importlib.util
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARAMS = {"do_remote_prefill": True, "kvmend": {"blocks": [1, 2]}}
BODY = {"prompt": "x", "max_tokens": 9, "min_tokens": 2, "stream": True}


@pytest.fixture(scope="module")
def proxy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("proxy", ROOT / "examples/vllm_pd/proxy.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def listen() -> Iterator[Callable[[ThreadingHTTPServer], str]]:
    """Runs servers; returns their addresses."""
    servers: list[ThreadingHTTPServer] = []

    def run(server: ThreadingHTTPServer) -> str:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


def instance(status: int, pieces: list[bytes], got: list[dict[str, Any]]) -> ThreadingHTTPServer:
    """Answers every request with `pieces`, one write each; keeps the requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            got.append({"path": self.path, **body})
            self.send_response(status)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def post(url: str, path: str, body: Any) -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers["content-type"]


def test_what_prefill_says_goes_to_decode_and_its_stream_to_the_client(
    proxy: ModuleType, listen: Callable[..., str]
) -> None:
    first: list[dict[str, Any]] = []
    second: list[dict[str, Any]] = []
    reply = json.dumps({"kv_transfer_params": PARAMS}).encode()
    p = listen(instance(200, [reply], first))
    d = listen(instance(200, [b"data: a\n\n", b"data: b\n\n"], second))
    url = listen(proxy.serve([p], [d]))
    answer = post(url, "/v1/completions", BODY)
    assert answer == (200, b"data: a\n\ndata: b\n\n", "text/event-stream")
    assert first == [{"path": "/v1/completions", "prompt": "x", "max_tokens": 1, "stream": False,
                      "kv_transfer_params": {"do_remote_decode": True}}]  # fmt: skip
    assert second == [{"path": "/v1/completions", **BODY, "kv_transfer_params": PARAMS}]


@pytest.mark.parametrize("how", ["refuses", "fails", "talks nonsense"])
def test_decode_computes_everything_when_prefill_does_not_answer(
    proxy: ModuleType, listen: Callable[..., str], how: str
) -> None:
    second: list[dict[str, Any]] = []
    if how == "refuses":
        closed = instance(200, [], [])
        p = f"http://127.0.0.1:{closed.server_port}"
        closed.server_close()
    else:
        p = listen(instance(500 if how == "fails" else 200, [b"nonsense"], []))
    d = listen(instance(200, [b"{}"], second))
    url = listen(proxy.serve([p], [d]))
    assert post(url, "/v1/chat/completions", BODY)[:2] == (200, b"{}")
    assert second == [{"path": "/v1/chat/completions", **BODY}]


def test_errors_reach_the_client(proxy: ModuleType, listen: Callable[..., str]) -> None:
    p = listen(instance(200, [b"{}"], []))
    url = listen(proxy.serve([p], [listen(instance(400, [b"too long"], []))]))
    assert post(url, "/v1/completions", BODY)[:2] == (400, b"too long")
    assert post(url, "/v1/other", BODY)[0] == 404
    assert post(url, "/v1/completions", "text")[0] == 400
    gone = instance(200, [], [])
    gone.server_close()
    url = listen(proxy.serve([p], [f"http://127.0.0.1:{gone.server_port}"]))
    assert post(url, "/v1/completions", BODY)[0] == 502
