"""The names of SGLang's metadata buffers, which KVArgs gives as bare addresses.

SGLang versions and settings differ in which buffers there are (sampling masks, a KV checksum, draft
top-k), and stock SGLang pairs them by position. With names exactly the common ones move. A name is
the buffer's attribute in `MetadataBuffers`, so a new one needs no change here.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

from ..kv_layout import KVComponent, KVField

__all__ = ["VERSION", "AuxRows", "aux_fields_of", "name_buffers", "watch"]

#: Of the meaning of the fields; to be raised where SGLang gives an old name a new meaning.
VERSION = 1

#: Without these decode can't go on: its first token, and the word that says the row is its own.
NEEDED = {"output_ids", "bootstrap_room"}
#: Without these a decode that has them would go on wrongly.
NEEDED_BY_DECODE = {"output_dsa_topk_indices"}

#: Address -> (name, dtype). A process has one or two sets of buffers, for as long as it lives.
_names: dict[int, tuple[str, str]] = {}


def name_buffers(buffers: Any) -> None:
    """Remembers the tensors of a `MetadataBuffers` by address."""
    for name, value in vars(buffers).items():
        if callable(getattr(value, "data_ptr", None)):
            _names[int(value.data_ptr())] = name, str(getattr(value, "dtype", ""))


def watch(utils: Any) -> None:
    """Around `MetadataBuffers.get_buf_infos` of SGLang's module, which its schedulers call just
    before they make a manager. A version that has none keeps its buffers without names."""
    original = getattr(getattr(utils, "MetadataBuffers", None), "get_buf_infos", None)
    if original is None or hasattr(original, "kvmend_original"):
        return

    @functools.wraps(original)
    def get_buf_infos(buffers: Any, *args: Any, **kwargs: Any) -> Any:
        name_buffers(buffers)
        return original(buffers, *args, **kwargs)

    get_buf_infos.kvmend_original = original  # type: ignore[attr-defined]
    utils.MetadataBuffers.get_buf_infos = get_buf_infos


def aux_fields_of(addresses: Sequence[int], *, decode: bool) -> list[KVField]:
    """One field per buffer, its whole row; none at all where a name isn't known."""
    found = [_names.get(int(address)) for address in addresses]
    fields = []
    for buffer, one in enumerate(found):
        if one is None:
            return []
        name, dtype = one
        needed = name in NEEDED or (decode and name in NEEDED_BY_DECODE)
        fields.append(KVField(name, buffer=buffer, dtype=dtype, required=needed))
    return fields


class AuxRows:
    """Decode's rows, of which fields that prefill doesn't have must not keep an older request's."""

    def __init__(self, aux: KVComponent | None) -> None:
        fields = [] if aux is None else aux.field_list
        buffers = [] if aux is None else aux.buffer_list
        self._rows = {field.name: buffers[field.buffer][:2] for field in fields}

    def clear_missing(self, row: int, came: Sequence[str]) -> list[str]:
        """Zeroes the fields of a row that didn't come; their names."""
        if len(came) == len(self._rows):
            return []
        missing = [name for name in self._rows if name not in came]
        for name in missing:
            address, length = self._rows[name]
            ctypes.memset(address + row * length, 0, length)
        return missing
