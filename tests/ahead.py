"""Compiling the kernel ahead of time, on a machine without a GPU."""

import multiprocessing
import re
import subprocess
import sys
import tempfile
from typing import NamedTuple

import jax
import jax.numpy as jnp
from cases import primitives

import rltriton_jax as rtj
from rltriton_jax.scan.plain.scan import in_stages
from rltriton_jax.scan.recurrence import COMPOSITE
from rltriton_jax.scan.triton import launch
from rltriton_jax.scan.triton.plan import make_plan

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
TYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float64": "fp64",
    "bool": "i1",
    "int32": "i32",
    "int8": "i8",
}


class Usage(NamedTuple):
    registers: int
    spilled: int
    shared: int


def equations(function, *args):
    """Every affine_scan in the traced function."""
    return [e for e in primitives(jax.make_jaxpr(function)(*args).jaxpr) if e.primitive.name == "affine_scan"]


def compile_scan(eqn, target: str, tile=None, **changes):
    """The compiled kernel that `eqn`, with `changes` of its parameters, would launch on `target`, and its tile."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    params = {k: v for k, v in eqn.params.items() if k != "implementation"} | changes
    operands = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    plan = make_plan(operands=operands, tile=tile, **params)
    if not plan.program.in_one_pass:  # the last of its launches
        shape = eqn.outvars[0].aval.shape
        params["recurrence"], operands = in_stages(
            params["recurrence"],
            operands,
            lambda *_, dtype, **__: (jax.ShapeDtypeStruct(shape, dtype),),
            dtype=params["dtype"],
        )
        plan = make_plan(operands=operands, tile=tile, carried=plan.program.num_carried, **params)
    constants = launch.constants(plan)
    kernel = launch.kernel_for(len(operands), len(plan.results), bool(plan.scratch), False, plan.program.num_carried)
    arrays = [*operands, *plan.scratch[-1:], *plan.results, *plan.scratch[:-1]]
    names = [n for n in kernel.arg_names if n not in constants]
    signature = {n: "*" + TYPES[a.dtype.name] for n, a in zip(names, arrays, strict=True)}
    signature |= dict.fromkeys(constants, "constexpr")
    attrs = {(i,): [["tt.divisibility", 16]] for i in range(len(names))}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attrs)
    options = {"num_warps": plan.program.tile.warps, "num_stages": 1, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options), plan.program.tile


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


SHAPES = ((128, 4096), (512, 16384), (4096, 512), (8192, 64), (32, 65536), (131072, 8), (1000, 100), (1, 1))
SPILL_BOUND = 128
"""Bytes a thread may spill: the occasional register in the widest tiles, far from the kilobytes of a wrong tile."""


def calls(axis: int):
    """Each estimator as a function of a float and a flag array."""
    at = {"time_axis": axis}
    ahead = {"bootstrap_value": 0.0, **at}
    return {
        "gae": lambda x, d: rtj.gae(x, x, d, **ahead),
        "vtrace": lambda x, d: rtj.vtrace(x, x, x, d, **ahead),
        "retrace": lambda x, d: rtj.retrace(x, x, x, d, next_state_values=x, **at),
        "retrace of 4 actions": lambda x, d: rtj.retrace(
            x, x, x, d, next_q_values=jnp.stack([x] * 4, -1), next_target_probs=jnp.stack([x] * 4, -1), **at
        ),
        "lambda_returns": lambda x, d: rtj.lambda_returns(x, x, d, **ahead),
        "discounted_returns": lambda x, d: rtj.discounted_returns(x, d, **at),
        "eligibility_traces": lambda x, d: rtj.eligibility_traces(x, d, **at),
        "episodic_prefix_sum": lambda x, d: rtj.episodic_prefix_sum(x, d, **at),
        "vtrace with valid": lambda x, d: rtj.vtrace(x, x, x, d, valid=d, **ahead),
        "vtrace between two": lambda x, d: rtj.vtrace(x, x, x, d, next_values=x, valid=d, **at),
        "gae with valid": lambda x, d: rtj.gae(x, x, d, valid=d, **ahead),
        "linear_recurrence": lambda x, d: rtj.linear_recurrence(x, x, **at),
    }


def variants():
    """(name, steps, rows, time axis, target) that reach every branch of the tile choice.

    The lightest and the heaviest in registers on every target; the others, and GAE's composite, take turns.
    """
    for n, (steps, rows) in enumerate(SHAPES):
        for axis in (0, 1):
            for m, name in enumerate(calls(axis)):
                for k, target in enumerate(TARGETS):
                    if name in ("gae", "vtrace") or (n + m + k + axis) % len(TARGETS) == 0:
                        yield name, steps, rows, axis, target
            yield COMPOSITE, steps, rows, axis, tuple(TARGETS)[n % len(TARGETS)]


def compile_variant(variant):
    name, steps, rows, axis, target = variant
    shape = (steps, rows) if axis == 0 else (rows, steps)
    x, d = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, jnp.bool_)
    changes = {"wanted": COMPOSITE} if name == COMPOSITE else {}
    (eqn,) = equations(calls(axis)["gae" if changes else name], x, d)
    compiled, tile = compile_scan(eqn, target, **changes)
    return variant, tile, usage(compiled, target)


def main() -> int:
    """Compiles every variant, prints a table of registers and spills, and fails where spills pass the bound."""
    work = list(variants())
    over = 0
    with multiprocessing.get_context("spawn").Pool() as pool:
        print(f"{'kernel':20} {'steps x rows':>14} axis target  tile{'':44} registers spilled shared")
        for (name, steps, rows, axis, target), tile, used in pool.imap(compile_variant, work):
            sizes = (
                "{0.block} rows, {0.groups} x {0.slices} steps, {0.warps} warps, {0.pieces} pieces, {0.chunks} chunks"
            )
            over += used.spilled > SPILL_BOUND
            print(
                f"{name:20} {f'{steps} x {rows}':>14} {axis:4} {target:7} {sizes.format(tile):58} {used.registers:5} "
                f"{used.spilled:7} {used.shared:6}",
                flush=True,
            )
    print(f"{len(work)} variants compiled ahead of time; {over} spill more than {SPILL_BOUND} bytes")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
