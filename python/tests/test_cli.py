"""The `kvmend` program: what it says to nonsense, and what it does when nobody takes its words."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kvmend
import pytest
from kvmend.testing.peer import Peer

_BUILT = Path(kvmend._kvmend.__file__).resolve().parents[2] / "bin" / "kvmend"
PROGRAM = str(_BUILT) if _BUILT.exists() else shutil.which("kvmend")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="the program isn't built here")


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "there is no command 'nonsense'; the commands are bench, bootstrap, probe"),
        (["--log-level", "off", "nonsense"], "no command 'nonsense'"),
        ([], "no command is given; the commands are bench"),
        (["serve", "--nonsense"], "--nonsense"),
        (["serve", "--mib", "x"], "--mib"),
        (["probe"], "session is required"),
    ],
)
def test_what_it_cant_understand_ends_with_2(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_host_with_a_port_is_refused_by_name() -> None:
    done = run("serve", "--mib", "1", "--host", "127.0.0.1:99")
    assert done.returncode == 1
    assert "host is '127.0.0.1:99', but must be an address without a port" in done.stderr


REDIRECTIONS = {
    "a full disk as output": (">/dev/full", 1),
    "a full disk for errors": ("2>/dev/full", 0),
    "closed output": (">&-", 0),
    "closed errors": ("2>&-", 0),
    "all closed": ("<&- >&- 2>&-", 0),
    "a reader that has gone": ("| true; exit ${PIPESTATUS[0]}", None),
}


@pytest.mark.parametrize("name", REDIRECTIONS)
@pytest.mark.parametrize("command", ["probe", "bench", "help"])
def test_output_that_nobody_takes_never_kills(peer: Peer, command: str, name: str) -> None:
    memory = peer.get("engine.register_memory(bytearray(1 << 20))")
    assert memory
    arguments = {
        "probe": f"probe {peer.session_id}",
        "bench": f"bench {peer.session_id} --seconds 0.1 --batch-mib 1 --page-bytes 65536",
        "help": "--help",
    }[command]
    redirection, code = REDIRECTIONS[name]
    done = subprocess.run(
        ["bash", "-c", f"{PROGRAM} {arguments} {redirection}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    # 128 and more: ended by a signal, as by std::terminate.
    assert done.returncode in ((0, 1) if code is None else (code,)), done.stderr


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", ">&-", ">/dev/full"])
@pytest.mark.parametrize("command", ["serve --mib 1", "bootstrap --listen 127.0.0.1:0"])
def test_a_server_whose_words_nobody_takes_runs_on(command: str, redirection: str) -> None:
    server = subprocess.Popen(
        ["bash", "-c", f"exec {PROGRAM} {command} {redirection}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(0.5)
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
        assert server.returncode == (1 if redirection == ">/dev/full" else 0), errors
    finally:
        server.kill()
        server.communicate()


@contextmanager
def admin(body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "body",
    [b"{}", b"[]", b"5", b"\xff", b'{"sessions": 5}', b'{"sessions": ["x"]}', b"[" * 100_000],
    ids=lambda body: body[:20].decode(errors="replace"),
)
def test_status_of_something_else_is_an_error(body: bytes) -> None:
    with admin(body) as url:
        done = run("status", url)
    assert done.returncode == 1
    assert "isn't a kvmend admin server" in done.stderr


def test_status_takes_fields_of_any_type() -> None:
    odd = {
        "session_id": "10.0.0.1:7\u001b[31m",
        "state": 7,
        "bytes_written": "many",
        "transfers_ok": -1,
        "retries": 1e300,
        "last_error": "line\none",
    }
    with admin(json.dumps({"sessions": [odd, {}, {"session_id": []}]}).encode()) as url:
        done = run("status", url)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "line?one" in done.stdout
    assert re.search(r"^10\.0\.0\.1:7\?\[31m", done.stdout, re.MULTILINE)


def test_the_demo_looks_at_its_output_before_it_runs(tmp_path: Path) -> None:
    there = tmp_path / "kept.json"
    there.write_text("kept")
    for path in (tmp_path / "no" / "such.json", tmp_path):
        done = subprocess.run(
            [sys.executable, "-m", "kvmend.demo", "--synthetic", "--quick", "--json", str(path)],
            capture_output=True, text=True, timeout=30, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert done.returncode == 2
        assert str(path) in done.stderr and "Traceback" not in done.stderr
    assert there.read_text() == "kept"
