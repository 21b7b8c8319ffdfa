"""The original's HTTP metadata server, for where none runs.

`python -m kvmend.mooncake.metadata_server [--host 127.0.0.1] [--port 8080]`

GET, PUT and DELETE of /metadata?key=...; values are kept in memory. Bound to loopback unless told
otherwise; it knows no authentication.
"""

from __future__ import annotations

import argparse
import http.server
import threading
import urllib.parse

__all__ = ["MetadataServer", "main"]

MAX_KEYS = 65536
MAX_VALUE = 64 << 10  # bytes
IDLE = 30.0  # seconds until a silent connection is closed


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE
    server: MetadataServer

    def do_GET(self) -> None:
        key = self._key()
        if key:
            value = self.server.values.get(key)
            self._answer(404 if value is None else 200, value or b"metadata not found")

    def do_PUT(self) -> None:
        key = self._key()
        if not key:
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > MAX_VALUE:
            self.close_connection = True
            self._answer(413, b"a value has up to 65536 bytes and a Content-Length")
            return
        value = self.rfile.read(int(length))
        self._answer(*self.server.put(key, value))

    def do_DELETE(self) -> None:
        key = self._key()
        if key:
            found = self.server.values.pop(key, None) is not None
            self._answer(200 if found else 404, b"metadata deleted" if found else b"not found")

    def _key(self) -> str:
        url = urllib.parse.urlsplit(self.path)
        key = urllib.parse.parse_qs(url.query).get("key", [""])[0].strip()
        if url.path != "/metadata" or not key:
            self.close_connection = True
            self._answer(404 if url.path != "/metadata" else 400, b"/metadata?key=... is needed")
            return ""
        return key

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


class MetadataServer(http.server.ThreadingHTTPServer):
    """Serves from a thread of its own once `start` was called; any thread may stop it."""

    daemon_threads = True

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), _Handler)
        self.values: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/metadata"

    def put(self, key: str, value: bytes) -> tuple[int, bytes]:
        """(HTTP status, text). As in the original, an rpc_meta key is nobody else's."""
        if key not in self.values and len(self.values) >= MAX_KEYS:
            return 507, b"too many keys"
        if "rpc_meta" in key and self.values.setdefault(key, value) is not value:
            return 400, b"the key is taken"
        self.values[key] = value
        return 200, b"metadata updated"

    def start(self) -> MetadataServer:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    server = MetadataServer(options.host, options.port)
    print(f"metadata at {server.url}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
