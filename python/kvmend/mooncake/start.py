"""Starts kvmend's engine where the original's would listen."""

from __future__ import annotations

import logging
import random
from typing import Unpack

from .. import engine as core
from ..errors import ResourceExhaustedError
from . import names
from .environment import Environment

__all__ = ["start_engine"]

logger = logging.getLogger("kvmend.mooncake")

PORT_TRIES = 256
REFUSED_PATIENCE = 2.0  # seconds that a transfer waits for a peer whose host refuses connections


def start_engine(
    host: str, environment: Environment, **options: Unpack[core.EngineOptions]
) -> core.TransferEngine:
    """Listens at the address of `host`, or at the environment's. Raises KvmendError, UnknownName.

    The engine fails transfers to a dead process after REFUSED_PATIENCE, as the original fails them
    quickly: long enough for a listener's blink.
    """
    address = names.resolve(host)
    bind = names.resolve(environment.bind_address) if environment.bind_address else address
    options = {"shutdown_grace": 1.0, "refused_park_max": REFUSED_PATIENCE,
               **environment.recovery, **options}
    if bind != address:
        options["advertise"] = address
    if not names.is_loopback(bind):
        options["insecure"] = True
        logger.warning(
            "listening at %s without authentication, as Mooncake does: use a private network", bind
        )
    if not environment.ports:
        return core.TransferEngine(bind, 0, **options)
    taken: ResourceExhaustedError | None = None
    tries = min(PORT_TRIES, len(environment.ports))
    for port in random.SystemRandom().sample(environment.ports, tries):
        try:
            return core.TransferEngine(bind, port, **options)
        except ResourceExhaustedError as error:
            taken = error
    assert taken is not None
    raise taken
