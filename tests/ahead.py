"""Compiling the kernel ahead of time, on a machine without a GPU."""

import re
import subprocess
import tempfile
from typing import NamedTuple

import jax

from rltriton_jax.scan import launch
from rltriton_jax.scan.tiles import choose_tile

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "sm_100": ("cuda", 100, 32), "gfx942": ("hip", "gfx942", 64)}
TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64", "bool": "i1", "int32": "i32", "int8": "i8"}


class Usage(NamedTuple):
    registers: int
    spilled: int
    shared: int


def equations(function, *args):
    """Every affine_scan in the traced function, those in its derivative's calls included."""

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "affine_scan":
                yield eqn
            for value in eqn.params.values():
                if hasattr(value, "jaxpr"):
                    yield from walk(value.jaxpr)

    return list(walk(jax.make_jaxpr(function)(*args).jaxpr))


def compile_scan(eqn, target: str, tile=None):
    """The compiled kernel that `eqn` would launch on `target`, and its tile."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    params = {k: v for k, v in eqn.params.items() if k != "implementation"}
    operands = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    plan = launch.make_plan(operands=operands, **params)
    tile = tile or choose_tile(plan.steps, plan.rows, plan.time_stride == 1, plan.streams)
    results = launch.results_of(plan, tile, operands=operands, **params)
    kernel = launch.entry(len(operands), len(params["outputs"]), tile.chunks > 1, False)
    constants = launch.constants_of(plan, tile, params["recurrence"], params["dtype"])
    arrays = [*operands, *(results[-1:] + results[:-1] if tile.chunks > 1 else results)]
    names = [n for n in kernel.arg_names if n not in constants]
    signature = {n: "*" + TYPES[a.dtype.name] for n, a in zip(names, arrays, strict=True)}
    signature |= dict.fromkeys(constants, "constexpr")
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(len(names))}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attrs)
    options = {"num_warps": tile.warps, "num_stages": 1, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options), tile


def usage(compiled, target: str) -> Usage:
    if target.startswith("gfx"):
        text = compiled.asm["amdgcn"]
        number = lambda key: int(re.search(rf"\.{key}:\s*(\d+)", text).group(1))
        return Usage(number("vgpr_count"), 4 * number("vgpr_spill_count"), compiled.metadata.shared)
    from triton.backends.nvidia.compiler import get_ptxas

    arch = TARGETS[target][1]
    name = f"sm_{arch}a" if arch >= 90 else f"sm_{arch}"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as ptx:
        ptx.write(compiled.asm["ptx"])
        ptx.flush()
        command = [get_ptxas(arch).path, "-v", f"--gpu-name={name}", ptx.name, "-o", "/dev/null"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = int(re.search(r"Used (\d+) registers", report).group(1))
    spilled = int(re.search(r"(\d+) bytes spill stores", report).group(1))
    return Usage(registers, spilled, compiled.metadata.shared)
