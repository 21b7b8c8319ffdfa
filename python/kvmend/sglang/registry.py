"""The bootstrap server: SGLang's own registry at a path where only kvmend backends look."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from sglang.srt.disaggregation.base.conn import BaseKVBootstrapServer
from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer

from .limits import STOCK_DECODE
from .routes import PREFIX, question_error, registration_error

__all__ = ["KvmendKVBootstrapServer"]


class _Registry(CommonKVBootstrapServer):
    def _setup_routes(self) -> None:
        super()._setup_routes()
        self.app.router.add_route("*", f"{PREFIX}/route", self._handle_ours)

    async def _handle_route(self, request: web.Request) -> web.Response:
        return web.Response(text=STOCK_DECODE, status=409)

    async def _handle_ours(self, request: web.Request) -> web.Response:
        """SGLang takes what it is sent as it is: one registration with a word for a number, and every
        question after it would be answered 500. So it is looked at first."""
        if request.method != "PUT":
            wrong = question_error(request.query) if request.method == "GET" else None
        else:
            try:
                wrong = registration_error(await request.json())
            except ValueError as error:
                wrong = f"a registration is JSON: {error}"
        if wrong is not None:
            return web.Response(text=wrong, status=400)
        response: web.Response = await super()._handle_route(request)
        # SGLang counts registrations, not ranks: one that is repeated would make the rest look complete.
        self._registered_count = sum(
            len(stages)
            for contexts in self.prefill_port_table.values()
            for ranks in contexts.values()
            for stages in ranks.values()
        )
        return response


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
