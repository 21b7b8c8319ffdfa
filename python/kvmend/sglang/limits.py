"""What this backend doesn't do yet. Everything that is refused is refused here, with a reason."""

from __future__ import annotations

from typing import Any

__all__ = ["STOCK_DECODE", "STOCK_PREFILL", "check_configuration", "unequal"]

OTHERWISE = (
    "use --disaggregation-transfer-backend mooncake on both servers, under `python -m kvmend.exec` "
    "for kvmend's engine"
)
STOCK_DECODE = (
    "transfer backends differ: this prefill server runs the kvmend backend, and whoever asks "
    "doesn't. Start the decode server with --disaggregation-transfer-backend kvmend too "
    "(pip install kvmend there)"
)
STOCK_PREFILL = (
    "transfer backends differ: this decode server runs the kvmend backend, and the prefill server "
    "at {} doesn't. Start it with --disaggregation-transfer-backend kvmend too (pip install kvmend "
    "there)"
)


def check_configuration(
    *,
    device: str,
    policy: str,
    staging: bool,
    kv_sharding: bool,
    all_cp_ranks: bool,
    cp_tp_sharing: bool,
    dcp_size: int,
) -> None:
    """Raises ValueError for a server's own settings that this backend doesn't serve."""
    reason = None
    if device != "cpu":
        reason = f"memory of {device!r} devices isn't moved yet, only host memory"
    elif policy != "early":
        reason = f"--disaggregation-decode-allocation-policy {policy}"
    elif staging:
        reason = "SGLANG_DISAGG_STAGING_BUFFER"
    elif kv_sharding:
        reason = "--enable-kv-cache-sharding"
    elif all_cp_ranks:
        reason = "several context-parallel prefill ranks that each send a part"
    elif cp_tp_sharing:
        reason = "--enable-cp-tp-group-sharing"
    elif dcp_size != 1:
        reason = f"decode context parallelism ({dcp_size})"
    if reason:
        raise ValueError(f"the kvmend backend doesn't offer this: {reason}; {OTHERWISE}")


def unequal(prefill: Any, decode: Any, opaque: str) -> str | None:
    """Why these two can't be paired, or None. `prefill`: PrefillServerInfo; `decode`: manager;
    `opaque`: why decode's pages can't be divided among tensor ranks, or ""."""
    if prefill.enable_kv_cache_sharding or prefill.enable_dsa_cache_layer_split:
        return f"the kvmend backend doesn't take KV split over prefill ranks; {OTHERWISE}"
    if opaque and prefill.attn_tp_size != decode.attn_tp_size:
        return (
            f"attention TP is {prefill.attn_tp_size} at prefill and {decode.attn_tp_size} at decode, "
            f"but {opaque}: the kvmend backend needs equal sizes here; {OTHERWISE}"
        )
    return None
