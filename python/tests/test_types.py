"""The package's annotations hold, stubs of the extension included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kvmend

ROOT = Path(__file__).resolve().parents[2]


def test_mypy_is_content(tmp_path: Path) -> None:
    package = Path(kvmend.__file__).parent  # of the build: it has the extension's stub
    assert (package / "_kvmend.pyi").exists() and (package / "py.typed").exists()
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml",
         "--cache-dir", tmp_path, package],
        capture_output=True, text=True, check=False, env={"MYPYPATH": str(package.parent)},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_option_of_the_engine_is_typed() -> None:
    typed = set(kvmend.EngineOptions.__annotations__) | {"host", "port"}
    assert typed == set(kvmend.default_options())
