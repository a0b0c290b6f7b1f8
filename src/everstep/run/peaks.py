"""What accelerators can do at their peak, by the name they give themselves.

Dense matrix products, as their makers publish them, in operations a second: in half precision (float16 or bfloat16),
and for models in float32, which the backends hand to the matrix units with fewer bits where there are such units
(TensorFloat-32 on NVIDIA's since A100, bfloat16 on TPUs).
"""

import re

# Words of the name, half precision, float32. The first that a device's name has counts.
_PEAKS: tuple[tuple[str, float, float], ...] = (
    ("H200 NVL", 835e12, 417e12),
    ("H200", 989e12, 494e12),
    ("GH200", 989e12, 494e12),
    ("H100 PCIe", 756e12, 378e12),
    ("H100 NVL", 835e12, 417e12),
    ("H100", 989e12, 494e12),
    ("A100", 312e12, 156e12),
    ("V100-PCIE", 112e12, 14e12),
    ("V100", 125e12, 15.7e12),
    ("T4", 65e12, 8.1e12),
    ("TPU v4", 275e12, 275e12),
    ("TPU v5 lite", 197e12, 197e12),
    ("TPU v5e", 197e12, 197e12),
    ("TPU v5p", 459e12, 459e12),
    ("TPU v5", 459e12, 459e12),
    ("TPU v6 lite", 918e12, 918e12),
    ("TPU v6e", 918e12, 918e12),
)
_SLICES = ("MIG", "GRID")  # names of a part of a device, which has a part of its peak


def peak_flops(device: str, half_precision: bool) -> float | None:
    """Returns the peak of a device, such as `NVIDIA H100 80GB HBM3`; None if it is not known here."""
    if any(_has(device, word) for word in _SLICES):
        return None
    for name, half, single in _PEAKS:
        if _has(device, name):
            return half if half_precision else single
    return None


def _has(device: str, words: str) -> bool:
    """Tells whether words stand in a name as such: an A1000 is no A100."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", device) is not None
