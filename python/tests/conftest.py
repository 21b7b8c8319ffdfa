"""Fixtures: engines of this process, and peers, which are processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kvmend import TransferEngine
from kvmend.testing.far import FarPair
from kvmend.testing.locked import Locked
from kvmend.testing.pair import Pair
from kvmend.testing.peer import Peer


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    """An engine of the test's own process."""
    with TransferEngine(shutdown_grace=0.2) as engine:
        yield engine


@pytest.fixture
def start_peer() -> Iterator[Callable[..., Peer]]:
    """Starts processes; those still there at the end are killed."""
    peers: list[Peer] = []

    def start(**options: object) -> Peer:
        peers.append(Peer(**options))
        return peers[-1]

    yield start
    for peer in peers:
        peer.kill()


@pytest.fixture
def peer(start_peer: Callable[..., Peer]) -> Peer:
    """One process with an engine."""
    return start_peer()


@pytest.fixture
def pair(engine: TransferEngine, peer: Peer) -> Pair:
    """This process is prefill, the peer is decode."""
    return Pair(engine, peer)


@pytest.fixture
def far(start_peer: Callable[..., Peer]) -> Iterator[FarPair]:
    """This process is prefill, the peer is decode, and the way between them is long and narrow."""
    pair = FarPair(start_peer(make_engine=False))
    yield pair
    pair.close()


@pytest.fixture(scope="session")
def locked() -> Iterator[Locked]:
    """Begins with the first test that names it, and goes on beside the next ones."""
    with TransferEngine(shutdown_grace=0.2) as engine, Peer() as peer:
        locked = Locked(engine, peer)
        yield locked
        locked.give_up()
