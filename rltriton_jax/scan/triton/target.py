"""Which GPU a program is compiled for: the one that is there, or the one that `lowering_for` names."""

import functools

import jax

from rltriton_jax.scan.implementation import lowering_target


def compute_capability(platform: str) -> int | None:
    """What jax_triton is told: 90 for sm_90, None for the device that is there; on ROCm the number is not used."""
    target = lowering_target(platform)
    if target is None:
        _require_device(platform)
        return None
    if platform == "rocm":
        _let_the_target_name_the_architecture()
        return 0
    return int(target.removeprefix("sm_"))


def _require_device(platform: str) -> None:
    try:
        jax.devices(platform)
    except RuntimeError as error:
        example = "sm_90" if platform == "cuda" else "gfx942"
        raise ValueError(
            f"this computation is being lowered for {platform}, but there is no such device here to compile the kernel "
            f"for; name one: with rtj.lowering_for({example!r}): ..., or use implementation='associative_scan'."
        ) from error


@functools.cache
def _let_the_target_name_the_architecture() -> None:
    """jax_triton takes a compute capability from its caller, but an AMD architecture from a device only."""
    from jax_triton import triton_lib

    library = triton_lib.triton_kernel_call_lib
    of_device = getattr(library, "get_arch_details", None)

    def get_arch_details(device):
        target = lowering_target("rocm")
        return target if target is not None or of_device is None else of_device(device)

    library.get_arch_details = get_arch_details


@functools.cache
def mend_rocm() -> None:
    """Hands on the number of thread blocks in a cluster, which Triton 3.9 asks for and jax_triton 0.4.1 leaves out."""
    from triton.backends.amd.compiler import HIPBackend

    make_llir = HIPBackend.make_llir

    def with_clusters(src, metadata, options):
        metadata.setdefault("num_ctas", options.num_ctas)
        return make_llir(src, metadata, options)

    HIPBackend.make_llir = staticmethod(with_clusters)  # pyright: ignore[reportAttributeAccessIssue]
