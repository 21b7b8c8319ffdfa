"""The layers of kvmend.vllm, as its docstring states them, and who may import vLLM and torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import kvmend.vllm

FOLDER = Path(kvmend.vllm.__file__).parent
HEAVY = {"torch", "vllm"}


def layers() -> list[list[str]]:
    """Of the docstring: lines of module names, then two spaces and what they are."""
    lines = re.findall(r"^    ((?:\w+, )+\w+) ", kvmend.vllm.__doc__ or "", re.MULTILINE)
    return [line.split(", ") for line in lines]


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """(dots, module) of every import."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from ((node.level, name) for name in names)
        elif isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)


def test_the_docstring_names_every_module_once() -> None:
    named = [module for layer in layers() for module in layer]
    assert sorted(named) == sorted(f.stem for f in FOLDER.glob("[a-z]*.py"))


def test_a_module_imports_only_from_those_above_it() -> None:
    order = [module for layer in layers() for module in layer]
    for module in order:
        for level, name in imports(FOLDER / f"{module}.py"):
            if level:
                assert order.index(name) < order.index(module), f"{module} imports {name}"


def test_only_the_last_layer_imports_vllm_and_torch() -> None:
    may = {FOLDER / f"{module}.py" for module in layers()[-1]}
    for file in FOLDER.parent.rglob("*.py"):
        heavy = {name.split(".")[0] for level, name in imports(file) if not level} & HEAVY
        assert not heavy or file in may, f"{file} imports {heavy}"
