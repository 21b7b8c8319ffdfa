"""Exceptions stand for the C++ status codes, one to one."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import kvmend
import pytest
from kvmend.errors import _CLASSES, Code, error_for

HEADER = Path(__file__).resolve().parents[2] / "include" / "kvmend" / "status.h"


def test_codes_are_those_of_the_header() -> None:
    numbers = dict(re.findall(r"^  k(\w+) = (\d+),", HEADER.read_text(), re.MULTILINE))
    there = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper(): int(n) for name, n in numbers.items()}
    assert there == {code.name: code.value for code in Code}


def test_every_code_but_ok_has_a_class_of_its_own() -> None:
    assert set(_CLASSES) == set(Code) - {Code.OK}
    for cls in _CLASSES.values():
        assert getattr(kvmend, cls.__name__) is cls


def test_errors_carry_what_happened() -> None:
    error = error_for(10, "peer", "127.0.0.1:9 answers as another", 104)
    assert isinstance(error, kvmend.PeerRestartedError)
    assert (error.code, error.code_name, error.origin) == (10, "peer_restarted", "peer")
    assert str(error) == "peer_restarted (peer): 127.0.0.1:9 answers as another [errno 104]"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_codes_of_a_newer_peer_are_kept() -> None:
    error = error_for(99, "peer", "from the future")
    assert type(error) is kvmend.KvmendError
    assert str(error) == "code_99 (peer): from the future"


@pytest.mark.parametrize(
    ("code", "builtin"),
    [(1, ValueError), (3, IndexError), (8, TimeoutError), (12, ConnectionError)],
)
def test_errors_are_what_python_would_raise(code: int, builtin: type[Exception]) -> None:
    assert isinstance(error_for(code, "caller", "x"), builtin)
