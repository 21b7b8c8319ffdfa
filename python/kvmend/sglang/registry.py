"""The bootstrap server: SGLang's own registry at a path where only kvmend backends look."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from sglang.srt.disaggregation.base.conn import BaseKVBootstrapServer
from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer

from .limits import STOCK_DECODE
from .routes import PREFIX

__all__ = ["KvmendKVBootstrapServer"]


class _Registry(CommonKVBootstrapServer):
    def _setup_routes(self) -> None:
        super()._setup_routes()
        self.app.router.add_route("*", f"{PREFIX}/route", super()._handle_route)

    async def _handle_route(self, request: web.Request) -> web.Response:
        return web.Response(text=STOCK_DECODE, status=409)


class KvmendKVBootstrapServer(BaseKVBootstrapServer):
    """Listens at once, on a thread of its own.

    It holds SGLang's registry instead of deriving from it: SGLang lets its Rust server stand in for
    classes that derive from it, and that one would neither know the path nor refuse the others.
    """

    def __init__(self, host: str, port: int) -> None:
        self._registry = _Registry(host, port)

    def close(self) -> None:
        self._registry.close()

    def poll(self) -> Any:
        return self._registry.poll()
