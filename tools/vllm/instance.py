"""A vLLM instance on CPU, as a process group of its own. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

NAME = "smollm2"
KV_BYTES = 512 << 20
MAX_TOKENS = 4096  # of a request
READY = 240.0  # seconds until it must answer


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def connector(role: str, policy: str = "recompute", **extra: Any) -> dict[str, Any]:
    """--kv-transfer-config of an instance; `extra`: kv_connector_extra_config."""
    return {
        "kv_connector": "KvmendConnector",
        "kv_connector_module_path": "kvmend.vllm",
        "kv_role": role,
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": extra,
    }


class Instance:
    """Unmodified vLLM: API server, engine core and workers. One thread at a time."""

    def __init__(
        self, tag: str, home: Path, model: str, kv: dict[str, Any] | None = None, *options: str
    ) -> None:
        """`home`: what ./dev vllm installed; `model`: a folder there. Logs go to home/logs."""
        self.tag, self.port = tag, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = home / "logs" / f"{tag}.log"
        self.log.parent.mkdir(exist_ok=True)
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(home / model), "--served-model-name", NAME,
            "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32",
            "--enforce-eager", "--max-model-len", str(MAX_TOKENS), "--max-num-seqs", "8",
            "--max-num-batched-tokens", str(MAX_TOKENS), "--kv-cache-memory-bytes", str(KV_BYTES),
            *options,
        ]  # fmt: skip
        if kv:
            command += ["--kv-transfer-config", json.dumps(kv)]
        env = {
            **os.environ, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
        }  # fmt: skip
        self.started = time.monotonic()
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                command, env=env, process_group=0, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait(self) -> Instance:
        """Until it answers. Raises RuntimeError with its log's first error, or TimeoutError."""
        while time.monotonic() < self.started + READY:
            if self._process.poll() is not None:
                text = self.log.read_text(errors="replace")
                why = re.findall(r"^.*(?:Error|Exception): .*$", text, re.MULTILINE)
                raise RuntimeError(f"{self.tag} has ended: {why[:1] or text[-500:]}")
            try:
                urllib.request.urlopen(self.url + "/health", timeout=2).close()
                return self
            except OSError:
                time.sleep(0.3)
        raise TimeoutError(f"{self.tag} doesn't answer within {READY:g} s")

    @property
    def alive(self) -> bool:
        """Whether it hasn't ended, nor lost a process that it reports as dead."""
        if self._process.poll() is not None:
            return False
        try:
            urllib.request.urlopen(self.url + "/health", timeout=10).close()
            return True
        except OSError:
            return False

    def stop(self) -> None:
        """SIGSTOP to all of its processes."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to all of its processes; returns once it is gone. Idempotent."""
        if self._process.poll() is None:
            self.resume()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def metrics(self) -> dict[str, float]:
        """The kvmend counters of /metrics that aren't zero, without prefix and suffix: sums over
        its engines."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as response:
            text = response.read().decode()
        found = re.findall(r"^vllm:kvmend_(\w+?)(?:_total)?\{[^}]*\} (\S+)$", text, re.MULTILINE)
        sums: dict[str, float] = {}
        for name, value in found:
            if not name.endswith(("_bucket", "_created")):
                sums[name] = sums.get(name, 0) + float(value)
        return {name: value for name, value in sums.items() if value}

    def cpu_seconds(self) -> float:
        """Used so far by all of its processes."""
        ticks = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(folder.name)) == self._process.pid:
                    fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                    ticks += int(fields[11]) + int(fields[12])
            except (OSError, IndexError):
                pass
        return ticks / os.sysconf("SC_CLK_TCK")
