"""Named sets of XLA options for a GPU (JAX).

They are options of the compiled steps, not `XLA_FLAGS`: they need not be set before the backend starts, do not affect
other programs of the process, and an option that the installed XLA does not know is an error instead of an abort. No
set changes whether operations are deterministic; only `runtime.deterministic` does.
"""

from collections.abc import Mapping
from typing import Any

import keras

from everstep.errors import UsageError

# Figures: how many times as fast a step of GPT-2 124M is (32 x 1024 tokens, bfloat16, one H200, JAX 0.11).
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    # Orders kernels so that transfers between devices, and copies, run while others compute; for several GPUs.
    "latency": {
        "xla_gpu_enable_latency_hiding_scheduler": True,
    },
    # Leaves all products to cuBLAS; compiles faster, too.
    "cublas": {
        "xla_gpu_enable_triton_gemm": False,  # 1.033
    },
    # Normalizes layers by cuDNN, forward and backward in one kernel each.
    "cudnn": {
        "xla_gpu_enable_cudnn_layer_norm": True,  # 1.006; beside "cublas" 0.995
    },
    # Products by cuBLAS, and those of the same input, such as queries, keys and values, stay apart: XLA would join
    # them, and copy the results apart.
    "transformer": {
        "xla_gpu_enable_triton_gemm": False,
        "xla_gpu_dot_merger_threshold_mb": 0,  # 1.008
    },
    # Lets Triton kernels, which fuse what is around a product, compete with cuBLAS for every product.
    "triton": {
        "xla_gpu_triton_gemm_any": True,  # 1.002
    },
}
"""Options by the name of the set; each comment says what an option does."""


def compiler_options(preset: str = "none") -> dict[str, Any]:
    """Returns the options of a set.

    Raises:
      UsageError: A set is requested on another backend than JAX, or this XLA does not know one of its options.
    """
    is_jax = keras.backend.backend() == "jax"
    if preset != "none" and not is_jax:
        reason = f"options of XLA are set on JAX only, not on {keras.backend.backend()}"
        raise UsageError(reason, key="runtime.xla_preset", received=preset, remedy="train on JAX")
    if not is_jax:
        return {}
    import jax

    options = dict(PRESETS[preset])
    if not options:
        return {}
    try:
        jax.jit(lambda x: x, compiler_options=options)(0)
    except Exception as error:  # of any type: it depends on the version
        text = str(error).splitlines()[0]
        reason = f"this version of XLA refuses its options: {text}"
        raise UsageError(reason, key="runtime.xla_preset", received=preset) from error
    return options
