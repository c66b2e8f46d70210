"""Which number formats a device computes in hardware. Asked by ``arguments`` and ``muon``."""

from __future__ import annotations

import torch


def has_fast_bf16(device: torch.device) -> bool:
    """Whether bf16 is done by units of its own; software bf16 is many times slower than fp32."""
    if device.type == "cpu":
        has = torch.cpu.get_capabilities()
        native: bool = any(has.get(unit) for unit in ("avx512_bf16", "amx_bf16", "bf16"))
        return native
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return False
