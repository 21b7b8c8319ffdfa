"""A router for prefill/decode-disaggregated vLLM over kvmend. Standard library only.

    python proxy.py --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200 [--port 8000]

Each request goes to a prefill instance for one token, then, with what that says about its KV cache
(`kv_transfer_params`), to a decode instance, whose answer is passed on as it comes (streams too).
Several --prefill and --decode take turns. If prefill fails, or takes longer than --prefill-timeout,
decode gets the request without the parameters and computes everything itself.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATHS = ("/v1/completions", "/v1/chat/completions")
MAX_BODY = 64 << 20
CHUNK = 64 << 10


def prefill_body(body: dict[str, Any]) -> dict[str, Any]:
    """The request as prefill gets it: the whole prompt, one token, keep the blocks for decode."""
    first = {k: v for k, v in body.items() if k not in ("min_tokens", "stream_options")}
    first.update(stream=False, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
    if "max_completion_tokens" in first:
        first["max_completion_tokens"] = 1
    return first


def decode_body(body: dict[str, Any], prefill_reply: dict[str, Any] | None) -> dict[str, Any]:
    """The request as decode gets it. `prefill_reply`: None, and decode computes the prompt."""
    params = (prefill_reply or {}).get("kv_transfer_params")
    return {**body, "kv_transfer_params": params} if params else body


def post(url: str, body: dict[str, Any], timeout: float) -> Any:
    """The open response. Raises OSError, HTTPError among them."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=timeout)


class Router(BaseHTTPRequestHandler):
    """One connection of a client; a thread of its own."""

    prefills: itertools.cycle[str]
    decodes: itertools.cycle[str]
    prefill_timeout: float
    decode_timeout: float

    def do_POST(self) -> None:
        length = int(self.headers["content-length"] or 0)
        if self.path not in PATHS or not 0 < length <= MAX_BODY:
            return self.answer(404, f"POST one of {', '.join(PATHS)}")
        try:
            body = json.loads(self.rfile.read(length))
        except ValueError as error:
            return self.answer(400, str(error))
        if not isinstance(body, dict):
            return self.answer(400, "the request isn't a JSON object")
        reply = self.ask_prefill(body)
        url = next(self.decodes) + self.path
        try:
            response = post(url, decode_body(body, reply), self.decode_timeout)
        except urllib.error.HTTPError as error:
            response = error
        except OSError as error:
            return self.answer(502, f"decode: {error}")
        with response:
            self.pass_on(response)

    def ask_prefill(self, body: dict[str, Any]) -> dict[str, Any] | None:
        url = next(self.prefills) + self.path
        try:
            with post(url, prefill_body(body), self.prefill_timeout) as response:
                reply = json.load(response)
                return reply if isinstance(reply, dict) else None
        except (OSError, ValueError) as error:
            print(f"proxy: {url}: {error}; decode computes the prompt", file=sys.stderr, flush=True)
            return None

    def pass_on(self, response: Any) -> None:
        self.send_response(response.status)
        self.send_header("content-type", response.headers.get("content-type", "application/json"))
        self.end_headers()  # HTTP/1.0: the end of the connection is the end of the answer
        try:
            while chunk := response.read1(CHUNK):
                self.wfile.write(chunk)
                self.wfile.flush()
        except OSError as error:  # an end went away: closing says so to the other
            print(f"proxy: an answer was cut off: {error}", file=sys.stderr, flush=True)

    def answer(self, status: int, error: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"error": error}).encode())

    def log_message(self, *_: Any) -> None:
        """Not every request."""


def serve(
    prefills: list[str],
    decodes: list[str],
    port: int = 0,
    host: str = "127.0.0.1",
    prefill_timeout: float = 60.0,
    decode_timeout: float = 600.0,
) -> ThreadingHTTPServer:
    """A server that listens; `serve_forever` runs it. Timeouts in seconds."""
    settings = {
        "prefills": itertools.cycle(prefills),
        "decodes": itertools.cycle(decodes),
        "prefill_timeout": prefill_timeout,
        "decode_timeout": decode_timeout,
    }
    return ThreadingHTTPServer((host, port), type("BoundRouter", (Router,), settings))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefill", action="append", required=True, metavar="URL")
    parser.add_argument("--decode", action="append", required=True, metavar="URL")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--prefill-timeout", type=float, default=60.0, metavar="SECONDS")
    args = parser.parse_args()
    server = serve(args.prefill, args.decode, args.port, args.host, args.prefill_timeout)
    print(f"http://{args.host}:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
