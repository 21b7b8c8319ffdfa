"""Aux rows with named fields: two versions of a serving system understand each other."""

from __future__ import annotations

from typing import Any

import kvmend
import numpy as np
import pytest
from kvmend import KVComponent, KVField, KVLayout, KVManager, KVPoll, KVPool, KVSender
from kvmend.testing.peer import Peer

#: Prefill's row: 4 bytes of token, 4 of log-probability, 8 of something new; and its own page.
ROW = np.dtype([("token", "<i4"), ("logprob", "<f4"), ("cached", "<i8")])

DECODE = """
aux = [np.zeros((4, *shape), np.uint8) for shape in shapes]
kv = np.zeros((4, 64), np.uint8)
layout = KVLayout([
    KVComponent([kv], 64),
    KVComponent(aux, [a[0].nbytes for a in aux], pool=KVPool.AUX, fields_version=version,
                fields=[f if isinstance(f, str) else KVField(**f) for f in fields]),
], page_tokens=4, kv_heads=1, head_dim=16)
manager = KVManager(engine, "decode", layout)
receiver = KVReceiver(manager, prefill, 1)
receiver.init()
try:
    receiver.send_metadata([2], 3)
except kvmend.IncompatibleError:
    pass  # the refusal was here first
"""


FIELDS = [
    KVField("token", bytes=4, dtype="int32"),
    KVField("logprob", offset=4, bytes=4, dtype="float32"),
    KVField("cached", offset=8, bytes=8, dtype="int64"),
]


def run(engine: kvmend.TransferEngine, peer: Peer, fields: Any, **more: Any) -> list[Any]:
    """Sends aux row 1 = (7, 0.5, 99) into decode's row 3; [status, why, names, its rows 3]."""
    aux, kv = np.zeros(4, ROW), np.ones((4, 64), np.uint8)
    aux[1] = (7, 0.5, 99)
    layout = KVLayout(
        [
            KVComponent([kv], 64),
            KVComponent([aux], ROW.itemsize, pool=KVPool.AUX, fields=FIELDS),
        ],
        page_tokens=4,
        kv_heads=1,
        head_dim=16,
    )
    with KVManager(engine, "prefill", layout) as manager:
        values = {"shapes": [[16]], "version": 1, **more}
        peer.run(DECODE, prefill=engine.session_id, fields=fields, **values)
        sender = KVSender(manager, 1)
        sender.init(1, 1)
        sender.send([0])
        found = peer.get(
            "[int(receiver.wait(30)), str(receiver.failure_exception() or ''),"
            " receiver.aux_fields(), [a[3].tobytes().hex() for a in aux]]"
        )
        if found[0] == KVPoll.SUCCESS:
            assert sender.wait(30) == KVPoll.SUCCESS
        return list(found)  # a refused decode never comes to the sender


def test_exactly_the_common_fields_move_by_name(
    engine: kvmend.TransferEngine, peer: Peer
) -> None:
    """Decode has a field less, a field more, another order, and a buffer for each."""
    fields = [
        {"name": "hidden", "bytes": 2},
        {"name": "cached", "buffer": 1, "offset": 3, "bytes": 8, "dtype": "int64"},
        {"name": "token", "buffer": 0, "offset": 2, "bytes": 4, "dtype": "int32", "required": True},
    ]
    status, why, names, rows = run(engine, peer, fields, shapes=[[8], [12]])
    assert (status, why, names) == (KVPoll.SUCCESS, "", ["cached", "token"])
    assert rows == ["0000" "07000000" "0000", "000000" "6300000000000000" "00"]


def test_a_field_that_must_be_there_is_named_in_the_refusal(
    engine: kvmend.TransferEngine, peer: Peer
) -> None:
    status, why, names, rows = run(
        engine, peer, [{"name": "token", "bytes": 4, "dtype": "int32"},
                       {"name": "hidden", "offset": 4, "bytes": 2, "required": True}]
    )
    assert status == KVPoll.FAILED and names == [] and set(rows[0]) == {"0"}
    assert 'aux field "hidden" missing here, required there' in why


def test_one_name_with_two_sizes_is_refused_with_both(
    engine: kvmend.TransferEngine, peer: Peer
) -> None:
    status, why, _, _ = run(engine, peer, [{"name": "token", "bytes": 8, "dtype": "int64"}])
    assert status == KVPoll.FAILED
    assert 'aux field "token" 4 bytes of int32 here, 8 bytes of int64 there' in why


def test_versions_that_differ_are_refused(engine: kvmend.TransferEngine, peer: Peer) -> None:
    status, why, _, _ = run(engine, peer, ["token"], version=2)
    assert status == KVPoll.FAILED and "fields_version 1 here, 2 there" in why


def test_a_name_alone_is_the_whole_row_of_its_buffer(engine: kvmend.TransferEngine) -> None:
    aux = [np.zeros((4, 2), np.int32), np.zeros((4, 1), np.float32)]
    component = KVComponent(aux, [8, 4], pool=KVPool.AUX, fields=["tokens", "logprob"])
    layout = KVLayout(
        [KVComponent([bytearray(64)], 16), component], page_tokens=4, kv_heads=1, head_dim=4
    )
    KVManager(engine, "decode", layout).teardown()
    component.field_list[1] = KVField("tokens", buffer=1)
    with pytest.raises(kvmend.InvalidArgumentError, match='"tokens" is named twice'):
        KVManager(engine, "decode", layout)
