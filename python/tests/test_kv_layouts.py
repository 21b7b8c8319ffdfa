"""Unequal parallelism between real processes: every byte at every decode rank is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import kvmend
import pytest
from kvmend import KVPoll, KVPool, KVRank, KVServer, map_kv_ranks
from kvmend.testing.peer import Peer, wait_until

#: Run in every process.
OPEN = """
from kvmend.testing.ranks import RankPools
pools = RankPools(KVRank(**rank), **model)
manager = KVManager(engine, role, pools.layout)

def send(room, pages, chunk):
    global sender
    pools.fill(pages)
    sender = KVSender(manager, room)
    sender.init(len(pages), 1)
    for at in range(0, len(pages), chunk):
        sender.send(pages[at:at + chunk])

def receive(room, sources, pages):
    global receiver
    receiver = KVReceiver(manager, [KVSource(*source) for source in sources], room)
    receiver.init()
    receiver.send_metadata(pages, 3)

def ended(end):
    return [int(end.wait(30)), str(end.failure_exception() or "")]
"""


class Fleet:
    """Processes that one test after the other uses; starting one costs more than a test."""

    def __init__(self) -> None:
        self._free: dict[str, list[Peer]] = {}
        self._taken: list[tuple[str, Peer]] = []

    def take(self, local: str = "auto") -> Peer:
        free = self._free.setdefault(local, [])
        peer = free.pop() if free else Peer(local=local, stage_below_bytes=2048)  # staged over tcp
        self._taken.append((local, peer))
        return peer

    def give_back(self) -> None:
        for local, peer in self._taken:
            peer.run("if 'manager' in globals(): manager.teardown(); del manager")
            self._free[local].append(peer)
        self._taken.clear()

    def kill(self) -> None:
        for peer in [*(p for _, p in self._taken), *(p for ps in self._free.values() for p in ps)]:
            peer.kill()


@pytest.fixture(scope="module")
def processes() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.kill()


@pytest.fixture
def start_peer(processes: Fleet) -> Iterator[Callable[..., Peer]]:
    """Peers with an engine and no manager."""
    yield processes.take
    processes.give_back()


@dataclass
class Shape:
    """An instance on each side, and the model."""

    name: str
    prefill_tp: int
    decode_tp: int
    heads: int = 4
    halves: int = 2
    pp: int = 1
    dcp: int = 1
    layers: int = 4
    local: str = "auto"  # "off": over tcp
    prefill_tokens: int = 4  # of a page
    decode_tokens: int = 4
    prefill: dict[tuple[int, int], Peer] = field(default_factory=dict)
    decode: list[Peer] = field(default_factory=list)

    def model(self, layers: list[int], page_tokens: int) -> dict[str, Any]:
        return {
            "heads": self.heads,
            "halves": self.halves,
            "layers": layers,
            "page_tokens": page_tokens,
        }

    def decode_rank(self, at: int) -> KVRank:
        return KVRank(
            tp_rank=at, tp_size=self.decode_tp, dcp_rank=at % self.dcp, dcp_size=self.dcp
        )

    def start(self, start_peer: Callable[..., Peer]) -> None:
        self.prefill, self.decode = {}, []
        each = self.layers // self.pp
        for tp in range(self.prefill_tp):
            for pp in range(self.pp):
                peer = self.prefill[tp, pp] = start_peer(local=self.local)
                peer.run(
                    OPEN,
                    role="prefill",
                    rank=vars(
                        KVRank(tp_rank=tp, tp_size=self.prefill_tp, pp_rank=pp, pp_size=self.pp)
                    ),
                    model=self.model(
                        list(range(pp * each, (pp + 1) * each)), self.prefill_tokens
                    ),
                )
        for at in range(self.decode_tp):
            peer = start_peer(local=self.local)
            self.decode.append(peer)
            peer.run(
                OPEN,
                role="decode",
                rank=vars(self.decode_rank(at)),
                model=self.model(list(range(self.layers)), self.decode_tokens),
            )

    def servers(self, at: int) -> tuple[list[KVServer], int]:
        found = map_kv_ranks(
            self.decode_rank(at),
            tp_size=self.prefill_tp,
            pp_size=self.pp,
            total_kv_heads=self.heads,
        )
        return found.servers, found.required_destinations

    def announce(self, room: int, pages: int) -> None:
        """Every decode rank announces its own pages for a request of so many of prefill's."""
        needed = -(-pages * self.prefill_tokens // (self.dcp * self.decode_tokens))
        for at, peer in enumerate(self.decode):
            servers, destinations = self.servers(at)
            sources = [
                [self.prefill[s.tp_rank, s.pp_rank].session_id, destinations, not s.writes]
                for s in servers
            ]
            target = [(7 * at + 5 * i) % 24 for i in range(needed)]
            peer.run("receive(room, sources, target)", room=room, sources=sources, target=target)

    def run_room(self, room: int, pages: list[int]) -> None:
        """One request through all ranks; raises AssertionError for the first wrong one."""
        self.announce(room, len(pages))
        for peer in self.prefill.values():
            peer.run("send(room, pages, 2)", room=room, pages=pages)
        for rank, peer in self.prefill.items():
            assert peer.get("ended(sender)") == [KVPoll.SUCCESS, ""], (self.name, "prefill", rank)
        for at, peer in enumerate(self.decode):
            assert peer.get("ended(receiver)") == [KVPoll.SUCCESS, ""], (self.name, "decode", at)
            tokens = self.prefill_tokens * len(pages)
            wrong = peer.get("pools.wrong(target, 3, tokens)", tokens=tokens)
            assert wrong == "", (self.name, "decode", at)


SHAPES = [
    Shape("2 to 4", 2, 4),
    Shape("4 to 2", 4, 2),
    Shape("2 to 4 MLA", 2, 4, heads=1, halves=1),
    Shape("4 to 2 MLA", 4, 2, heads=1, halves=1),
    Shape("pp 2 to 1", 1, 1, pp=2),
    Shape("pp 2 to 1 MLA", 1, 1, heads=1, halves=1, pp=2),
    Shape("pp 2 to 1, tp 2 to 1", 2, 1, pp=2),
    Shape("heads replicate at decode", 1, 4, heads=2),
    Shape("heads replicate at prefill", 4, 1, heads=2),
    Shape("dcp 2, MLA", 1, 2, heads=1, halves=1, dcp=2),
    Shape("2 to 4, pp 2 to 1", 2, 4, pp=2),
    Shape("4 to 2, pp 2 to 1", 4, 2, pp=2),
    Shape("2 to 4, pp 2 to 1, MLA", 2, 4, heads=1, halves=1, pp=2),
    Shape("4 to 2, pp 2 to 1, MLA", 4, 2, heads=1, halves=1, pp=2),
    Shape("pages of 4 to 8", 1, 1, decode_tokens=8),
    Shape("pages of 12 to 4", 1, 1, prefill_tokens=12, layers=2),
    Shape("pages of 4 to 16, 2 to 4", 2, 4, decode_tokens=16),
    Shape("pages of 8 to 4, 4 to 2, MLA", 4, 2, heads=1, halves=1, prefill_tokens=8),
    Shape("pages of 4 to 6", 1, 1, decode_tokens=6),
    Shape("pages of 6 to 4, 2 to 4, tcp", 2, 4, prefill_tokens=6, local="off"),
    Shape("dcp 2, pages of 4 to 6, MLA", 1, 2, heads=1, halves=1, dcp=2, decode_tokens=6),
    Shape("dcp 2, pages of 8 to 2", 1, 2, heads=1, dcp=2, prefill_tokens=8, decode_tokens=2),
    Shape("2 to 4, tcp", 2, 4, local="off"),
    Shape("4 to 2, tcp", 4, 2, local="off"),
]


@pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: shape.name.replace(",", "").replace(" ", "_")
)
def test_every_byte_lands_where_it_belongs(
    shape: Shape, start_peer: Callable[..., Peer]
) -> None:
    shape.start(start_peer)
    shape.run_room(room=2**62 + 1, pages=[9, 10, 11, 3, 17])


@pytest.mark.parametrize("heads", [4, 1], ids=["MHA", "MLA"])
@pytest.mark.parametrize("sizes", [(2, 4), (4, 2)], ids=["2_to_4", "4_to_2"])
def test_an_abort_reaches_every_rank_of_a_fleet(
    sizes: tuple[int, int], heads: int, start_peer: Callable[..., Peer]
) -> None:
    """One decode rank gives a room up: the ranks that serve it fail with its reason, the others' own
    ends too once theirs does, each of the aborting ranks is answered, and the next room works."""
    shape = Shape("fleet", *sizes, heads=heads, halves=2 if heads > 1 else 1, pp=2)
    shape.start(start_peer)
    shape.announce(7, 3)
    for peer in shape.prefill.values():
        peer.run("sender = KVSender(manager, 7); sender.init(3, 1)")
    for peer in shape.prefill.values():  # each has heard from all of its decode ranks
        assert peer.get("int(sender.wait_for(KVPoll.WAITING_FOR_INPUT, 30))") >= 2
    for peer in shape.decode:
        peer.run("receiver.abort('the client has gone')")
    for peer in shape.decode:
        status, why = peer.get("ended(receiver)")
        assert status == KVPoll.FAILED and "the client has gone" in why
        wait_until(lambda peer=peer: peer.get("receiver.abort_acknowledged()"), "every answer")
        assert peer.get("receiver.pages_released()")
    for peer in shape.prefill.values():
        status, why = peer.get("ended(sender)")
        assert status == KVPoll.FAILED and "the client has gone" in why
        assert peer.get("manager.stats().rooms") == 0
    shape.run_room(room=8, pages=[5, 4, 9])


def test_pages_of_unknown_inside_and_other_size_are_refused_with_both_values(
    start_peer: Callable[..., Peer],
) -> None:
    """Case I6."""
    shape = Shape("pages of 4 to 8, opaque", 1, 1, decode_tokens=8)
    shape.start(start_peer)
    decode = shape.decode[0]
    decode.run("""
        manager.teardown()
        pools.layout.element_order = "opaque"
        manager = KVManager(engine, role, pools.layout)
    """)
    shape.announce(1, 4)
    status, why = decode.get("ended(receiver)")
    assert status == KVPoll.FAILED and "page_tokens 4 here, 8 there" in why


def test_a_prefill_rank_that_is_left_out_is_noticed(start_peer: Callable[..., Peer]) -> None:
    """Case I8: without half of the heads nothing is ever complete."""
    shape = Shape("2 to 1", 2, 1)
    shape.start(start_peer)
    session = shape.prefill[1, 0].session_id
    shape.decode[0].run("receive(5, [[session, 1, False]], [1, 2])", session=session)
    status, why = shape.decode[0].get("ended(receiver)")
    assert status == KVPoll.FAILED
    assert "64 of 128 bytes of each page of kv buffer 0" in why


def test_heads_that_dont_divide_are_refused_with_both_values(
    start_peer: Callable[..., Peer],
) -> None:
    """Case I6."""
    prefill, decode = start_peer(), start_peer()
    model = {"heads": 6, "halves": 2, "layers": [0]}
    prefill.run(OPEN, role="prefill", rank={"tp_size": 3}, model=model)
    decode.run(OPEN, role="decode", rank={"tp_size": 2}, model=model)
    decode.run("receive(1, [[session, 1, False]], [1])", session=prefill.session_id)
    status, why = decode.get("ended(receiver)")
    assert status == KVPoll.FAILED and "tp_size 3 here, 2 there" in why
    with pytest.raises(kvmend.IncompatibleError, match="tp_size 3 here, 2 there"):
        map_kv_ranks(KVRank(tp_size=2), tp_size=3)


def test_shapes_share_and_elided_buffers_reach_the_manager(
    engine: kvmend.TransferEngine,
) -> None:
    layout = kvmend.KVLayout(
        [
            kvmend.KVComponent([(0, 0), bytearray(4096)], [0, 512], layer_ids=[3, 4]),
            kvmend.KVComponent(
                [bytearray(960)],
                96,
                pool=KVPool.MAMBA,
                shapes=[kvmend.KVShape(rows=2, columns=8, total_columns=16, groups=[4, 4, 8])],
                optional=[0],
            ),
        ],
        page_tokens=16,
        kv_heads=2,
        head_dim=16,
        rank=KVRank(tp_rank=1, tp_size=2, cp_size=2),
        share=kvmend.KVShare.RANGES,
    )
    kvmend.KVManager(engine, "prefill", layout).teardown()
    layout.components[1].shapes = [kvmend.KVShape(columns=3, total_columns=16)]
    with pytest.raises(kvmend.InvalidArgumentError, match="3 of 16 columns: tp_size 2"):
        kvmend.KVManager(engine, "prefill", layout)


def _layout(**changed: Any) -> kvmend.KVLayout:
    component = {"buffers": [bytearray(4096)], "item_len": 64, "dtype": "uint8"}
    layout: dict[str, Any] = {"page_tokens": 16, "kv_heads": 1, "head_dim": 4}
    for name, value in changed.items():
        (component if name in ("item_len", "items", "dtype", "pool", "layer_ids") else layout)[
            name
        ] = value
    return kvmend.KVLayout([kvmend.KVComponent(**component)], **layout)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"item_len": 1.5}, "item_len=1.5 must be an int from 0"),
        ({"item_len": 2**70}, f"item_len={2**70} must be"),
        ({"item_len": -1}, "item_len=-1 must be"),
        ({"items": True}, "items=True must be an int"),
        ({"items": "x"}, "items='x' must be an int"),
        ({"dtype": None}, "KVComponent.dtype=None must be a str"),
        ({"dtype": "\ud800"}, "KVComponent.dtype=.* must be a str of valid Unicode"),
        ({"pool": "KV"}, "KVComponent.pool='KV' must be an int from 0 to 4294967295"),
        ({"layer_ids": [-1]}, r"KVComponent.layer_ids=\[-1\] must be a sequence of ints"),
        ({"page_tokens": -1}, "KVLayout.page_tokens=-1 must be an int from 0 to 4294967295"),
        ({"page_tokens": 2**32}, "KVLayout.page_tokens=4294967296 must be"),
        ({"page_tokens": True}, "KVLayout.page_tokens=True must be"),
        ({"element_order": None}, "KVLayout.element_order=None must be a str"),
        ({"rank": KVRank(tp_rank=-1)}, "KVRank.tp_rank=-1 must be"),
    ],
)
def test_a_layout_of_wrong_types_is_refused_by_name(
    engine: kvmend.TransferEngine, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        kvmend.KVManager(engine, "prefill", _layout(**changed))
    kvmend.KVManager(engine, "prefill", _layout()).teardown()


def test_the_data_parallel_rank_is_given_or_follows_the_room() -> None:
    assert kvmend.choose_dp_rank(2**63 - 1, 4) == 3
    assert kvmend.choose_dp_rank(5, 4, given=2) == 2
    assert kvmend.choose_dp_rank(5, 4, follow_room=False) is None
