"""The API of `mooncake.engine` over kvmend's engine: same names, arguments and return numbers.

`from kvmend.mooncake import TransferEngine`, or leave the program as it is and run it with
`python -m kvmend.exec -- python ...` (or `import kvmend.as_mooncake` first): then
`from mooncake.engine import TransferEngine` finds this one. docs/integrations-mooncake.md says
what differs from the original.
"""

from .engine import (
    SUPPORT_CUDA,
    SUPPORT_EFA,
    SUPPORT_HIP,
    SUPPORT_INTRA_NVLINK,
    SUPPORT_MNNVL,
    SUPPORT_MUSA,
    Read,
    TransferEngine,
    TransferNotify,
    TransferOpcode,
    Write,
)

__all__ = [
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "Read",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
]
