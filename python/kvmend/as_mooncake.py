"""`import kvmend.as_mooncake` before anything else: `mooncake.engine` is kvmend's from then on.

An installed Mooncake stays as it is, and its other modules stay importable. Child processes don't
inherit it; for those run the program with `python -m kvmend.exec -- python ...`.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder

from . import mooncake as _ours

__all__: list[str] = []


class _Loader(Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return types.ModuleType(spec.name, _ours.__doc__)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "mooncake":
            module.__path__ = []
            return
        for name in _ours.__all__:
            setattr(module, name, getattr(_ours, name))


class _Finder(MetaPathFinder):
    """Finds `mooncake.engine`, and `mooncake` itself where none is installed."""

    _asking = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "mooncake.engine":
            return importlib.machinery.ModuleSpec(fullname, _Loader())
        if fullname != "mooncake" or self._asking:
            return None
        self._asking = True
        try:
            installed = importlib.util.find_spec("mooncake")
        finally:
            self._asking = False
        if installed is not None:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=True)


def _install() -> None:
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    loaded = sys.modules.pop("mooncake.engine", None)
    if loaded is not None and getattr(loaded, "TransferEngine", None) is not _ours.TransferEngine:
        logging.getLogger("kvmend.mooncake").warning(
            "mooncake.engine was imported before kvmend.as_mooncake: names taken from it so far "
            "stay Mooncake's"
        )
    sys.meta_path.insert(0, _Finder())
    package = sys.modules.get("mooncake")
    if package is not None and hasattr(package, "engine"):
        del package.engine


_install()
