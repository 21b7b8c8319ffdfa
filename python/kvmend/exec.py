"""`python -m kvmend.exec -- python program.py ...`: a program that imports Mooncake gets kvmend.

`from mooncake.engine import TransferEngine` resolves to kvmend's there and in all its child
processes, whether Mooncake is installed or not; an installed one isn't touched.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
from collections.abc import Mapping

__all__ = ["environment", "main"]

USAGE = "usage: python -m kvmend.exec [--] COMMAND [ARGUMENT...]"


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with a PYTHONPATH that begins with kvmend's stand-in for the mooncake package."""
    package = os.path.dirname(os.path.abspath(__file__))
    first = [os.path.join(package, "mooncake", "shim")]
    home = os.path.dirname(package)
    if home not in (*site.getsitepackages(), site.getusersitepackages()):
        first.append(home)  # a build folder
    before = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [*first, *(path for path in before if path not in first)]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


def main(arguments: list[str] | None = None) -> int:
    """Replaces this process by the command; returns only when it can't (127, or 2: usage)."""
    command = sys.argv[1:] if arguments is None else arguments
    if command[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print(USAGE, file=sys.stderr)
        return 2
    program = shutil.which(command[0])
    if program is None:
        print(f"kvmend.exec: there is no program {command[0]!r}", file=sys.stderr)
        return 127
    os.execve(program, command, environment(os.environ))


if __name__ == "__main__":
    sys.exit(main())
