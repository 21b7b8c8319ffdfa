"""`mooncake.engine` becomes kvmend's: by import, by exec, beside an installed Mooncake or alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvmend.exec import environment, main

CHECK = """
import kvmend.mooncake, mooncake.engine
from mooncake.engine import TransferEngine, TransferOpcode
assert TransferEngine is kvmend.mooncake.TransferEngine
assert mooncake.engine.TransferEngine is TransferEngine
assert TransferOpcode.Write == 1
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
"""
OTHERS = """
import mooncake, mooncake.store
assert mooncake.store.MARK == "original" and mooncake.MARK == "original"
"""


def run(*command: str, path: Path | None = None, code: int = 0) -> str:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    here = [str(Path(__file__).parent)]
    import kvmend

    home = str(Path(kvmend.__file__).parents[1])
    env["PYTHONPATH"] = os.pathsep.join([*([str(path)] if path else []), home])
    done = subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, cwd=here[0], timeout=60
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A site folder with a Mooncake whose engine can't even be imported."""
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").write_text("from .store import MARK\n")
    (package / "store.py").write_text("import mooncake.engine\nMARK = 'original'\n")
    (package / "engine.py").write_text("raise RuntimeError('the original was imported')\n")
    return tmp_path


def test_import_without_mooncake() -> None:
    run("-c", "import kvmend.as_mooncake, kvmend.as_mooncake\n" + CHECK)


def test_import_beside_an_installed_mooncake(installed: Path) -> None:
    run("-c", "import kvmend.as_mooncake\n" + CHECK + OTHERS, path=installed)


def test_import_after_mooncake_warns(installed: Path) -> None:
    (installed / "mooncake" / "engine.py").write_text("class TransferEngine: pass\n")
    code = "import mooncake.engine, kvmend.as_mooncake\n" + CHECK
    assert "before kvmend.as_mooncake" in run("-c", code, path=installed)


def test_exec_without_mooncake() -> None:
    run("-m", "kvmend.exec", "--", sys.executable, "-c", CHECK)


def test_exec_beside_an_installed_mooncake_reaches_children(installed: Path) -> None:
    child = f"[sys.executable, '-c', {CHECK + OTHERS!r}]"
    nested = f"import subprocess, sys; subprocess.run({child}, check=True)"
    run("-m", "kvmend.exec", sys.executable, "-c", nested, path=installed)
    assert (installed / "mooncake" / "engine.py").read_text().startswith("raise")


def test_exec_survives_an_installed_mooncake_that_cannot_be_imported(installed: Path) -> None:
    (installed / "mooncake" / "__init__.py").write_text("import no_such_library\n")
    output = run("-m", "kvmend.exec", "--", sys.executable, "-c", CHECK, path=installed)
    assert "can't be imported" in output


def test_exec_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["--"]) == 2
    assert main(["no-such-program-anywhere"]) == 127
    assert main(["--help"]) == 0
    assert "usage" in capsys.readouterr().out


def test_exec_keeps_the_paths_that_are_there() -> None:
    env = environment({"PYTHONPATH": "/a:/b", "X": "1"})
    assert env["X"] == "1"
    assert env["PYTHONPATH"].endswith("/a:/b")
    assert "shim" in env["PYTHONPATH"].split(":")[0]
    assert environment(env) == env
