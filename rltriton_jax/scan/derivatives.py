"""The derivatives of the primitive.

Let a backward scan be x[t] = u[t] + w[t] x[t+1] (a forward one reads t-1 for t+1). Its differential is

    dx[t] = du[t] + dw[t] x[t+1] + w[t] dx[t+1],

which is the same bare recurrence with the inputs du + dw * entering, where entering[t] = x[t+1]: it is bound once more,
and higher orders follow. With the algebra around the scan, (w, u) = coefficients(s) and y = outputs(s, x, entering), du
and dw are differentials of the coefficients at ds, and dy is that of the outputs at (ds, dx, dx entering). These are
sums of partial * tangent, and `plain.partials` has the partials. What JAX will differentiate again is made of the scan,
that one, `scaled`, `shifted` and what is linear, and of nothing else.

The bare recurrence is linear in u and in the initial state x0. From x = u + W x, with W x = w * entering, the transpose
in u solves c = ct + W^T c:

    c[t] = ct[t] + w[t-1] c[t-1],

the scan in the other direction, in which step t applies the weight of the step before it, t-1: the same weights, read
with a shift of one step. x0 enters only the first step in scan order, as w x0, so that its cotangent is w c there.

`differential` and its transpose, `cotangents`, are primitives, each of which is by definition what is written above,
and whose derivatives are those of what is written above. A platform may have a faster way: on a CPU one loop writes all
cotangents, with the algebra's derivative in its body.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from rltriton_jax.scan.jax_internals import Primitive, ad, debugs_nans, mlir, retyped, varying_axes, zero_tangent
from rltriton_jax.scan.lowering import implementation_on
from rltriton_jax.scan.plain import cotangents as by_loop
from rltriton_jax.scan.plain import scan as plain
from rltriton_jax.scan.plain.neighbours import edge_step, shifted
from rltriton_jax.scan.plain.partials import (
    change_needs_state,
    change_of_output,
    finite_behind_cuts,
    finite_weights,
    inputs_of_change,
)
from rltriton_jax.scan.plain.products import scaled, unbroadcast
from rltriton_jax.scan.primitive import affine_scan_p
from rltriton_jax.scan.recurrence import Recurrence, is_linear, linear, without_sums
from rltriton_jax.scan.rules import aligned, bind, define, differentiate, result_aval
from rltriton_jax.scan.sharding.devices import is_split


def _plus(a, b):
    """a + b, where None is 0."""
    return b if a is None else a if b is None else a + b


def _moving(tangents) -> dict[int, Any]:
    return {i: t for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)}


def _jvp_of_moving(function, primals, tangents: Mapping[int, Any]):
    """`function` of a list of all primals, and its tangent.

    Primals without a tangent are held fixed, so that no array of zeros is made for them.
    """

    def of(*moved):
        full = list(primals)
        for i, value in zip(tangents, moved, strict=True):
            full[i] = value
        return function(full)

    return jax.jvp(of, tuple(primals[i] for i in tangents), tuple(tangents.values()))


def _with_sums_taken(recurrence, primals, tangents, dtype):
    """The recurrence, primals and tangents of which every weighted sum is an operand like the others."""
    summed, sums = without_sums(recurrence)
    known = dict(zip(recurrence.operands, tangents, strict=True))
    moving = {name for name, t in known.items() if not isinstance(t, ad.Zero)}
    taken, dtaken = _jvp_of_moving(
        lambda full: plain.sums_taken(recurrence, full, dtype=dtype)[1], primals, _moving(tangents)
    )
    for name, x, dx in zip(summed.operands, taken, dtaken, strict=True):
        if name in sums:
            still = moving.isdisjoint(sums[name])
            known[name] = zero_tangent(x) if still else dx
    return summed, taken, [known[name] for name in summed.operands]


def _jvp(primals, tangents, *, recurrence, wanted, **params):
    """dx is the bare recurrence of du + dw * entering; all else is the derivative of the algebra."""
    if recurrence.carried:
        function = functools.partial(_in_stages, recurrence=recurrence, wanted=wanted, **params)
        return _jvp_of_moving(function, primals, _moving(tangents))
    if any(r.weights is not None for r in recurrence.reads):
        recurrence, primals, tangents = _with_sums_taken(recurrence, primals, tangents, params["dtype"])
    with_state = wanted if recurrence.state in wanted else (*wanted, recurrence.state)
    results = bind(affine_scan_p, *primals, recurrence=recurrence, wanted=with_state, **params)
    x = results[with_state.index(recurrence.state)]
    results = results[: len(wanted)]

    rule = _jvp_linear if is_linear(recurrence) else _jvp_fused
    outs = rule(primals, tangents, results, x, recurrence=recurrence, wanted=wanted, **params)
    return results, outs


def _in_stages(operands, recurrence, *, dtype, wanted, **params):
    """The outputs by one scan for each recurrence that is carried, and one for the last."""
    scan = functools.partial(bind, affine_scan_p, **params)
    recurrence, operands = plain.in_stages(recurrence, operands, scan, dtype=dtype)
    return bind(affine_scan_p, *operands, recurrence=recurrence, dtype=dtype, wanted=wanted, **params)


def _jvp_linear(primals, tangents, _, x, *, recurrence, time_axis, dtype, wanted, implementation):
    weights = primals[1]
    dinputs, dweights, *dinitial = tangents
    shift = recurrence.reads.weight.shift
    inputs = None if isinstance(dinputs, ad.Zero) else dinputs.astype(x.dtype)
    if not isinstance(dweights, ad.Zero):
        in_place = shift == 0 or weights.shape[time_axis] == 1
        w, dw = (a if in_place else shifted(a, shift, None, time_axis) for a in (weights, dweights))
        initial = plain.initial_state(recurrence, primals, dtype)
        entering = plain.entering(x, initial, time_axis=time_axis, reverse=recurrence.reverse)
        inputs = _plus(inputs, scaled(dw.astype(x.dtype), finite_behind_cuts(entering, w)))
    if inputs is None:
        inputs = jnp.zeros(x.shape, x.dtype)
    dx = _bind_linear(
        inputs,
        finite_weights(weights),
        None if not dinitial or isinstance(dinitial[0], ad.Zero) else dinitial[0],
        reverse=recurrence.reverse,
        shift=shift,
        time_axis=time_axis,
        dtype=x.dtype,
        implementation=implementation,
    )
    return [dx if i == recurrence.state else dx.astype(dtype) for i in wanted]


def _jvp_fused(primals, tangents, results, x, *, recurrence, wanted, **params):
    """No output changes with what is a flag."""
    numbers = {name for r in recurrence.reads if r.kind == "number" for name in (r.operand, r.beyond)}
    moving = {i: t for i, t in _moving(tangents).items() if recurrence.operands[i] in numbers | {recurrence.initial}}
    if not moving:
        return [zero_tangent(x) for x in results]
    names = tuple(recurrence.operands[i] for i in moving)
    if not change_needs_state(recurrence, x.dtype, wanted, by_loop.moving_reads(recurrence, names)):
        x = jnp.zeros((1,) * x.ndim, x.dtype)
    operands = [*primals, x, *moving.values()]
    params |= {"recurrence": recurrence, "wanted": wanted, "moving": names}
    # What it reads may hold garbage that it leaves out, and be an output of a jitted forward pass, where it is seen.
    if debugs_nans() or any(varying_axes(jax.typeof(a)) or _is_explicit(a) for a in operands):
        return _differential(*operands, **params)
    return bind(differential_p, *operands, **params)


def _is_explicit(x):
    return AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types


def _differential(*operands, recurrence: Recurrence, moving, time_axis, dtype, wanted, implementation):
    """The changes of the `wanted` outputs at those of the operands named `moving`.

    It takes the operands of the scan, its state, of size 1 where nothing depends on that, and the changes.
    """
    count = len(recurrence.operands)
    primals, x, changes = operands[:count], operands[count], dict(zip(moving, operands[count + 1 :], strict=True))
    shape, layout = plain.output_shape(primals, time_axis), {"time_axis": time_axis, "reverse": recurrence.reverse}
    initial = plain.initial_state(recurrence, primals, dtype)
    entering = plain.entering(x, initial, **layout)
    dinitial = changes[recurrence.initial].astype(x.dtype) if recurrence.initial in changes else None

    gather = functools.partial(plain.gather, recurrence, time_axis=time_axis, dtype=dtype)
    tangents = {recurrence.operands.index(name): change for name, change in changes.items()}
    reads, dreads = _jvp_of_moving(gather, primals, tangents)
    of_reads = {i: dreads[i] for i in by_loop.moving_reads(recurrence, moving)}
    w, inputs = inputs_of_change(recurrence, x.dtype, reads, of_reads, entering)
    dx = _bind_linear(
        jnp.zeros(shape, x.dtype) if inputs is None else jnp.broadcast_to(inputs, shape),
        finite_weights(w),
        dinitial,
        reverse=recurrence.reverse,
        shift=0,
        time_axis=time_axis,
        dtype=x.dtype,
        implementation=implementation,
    )
    of_all = of_reads | {len(reads): dx, len(reads) + 1: plain.entering(dx, dinitial, **layout)}

    def change(i):
        d = change_of_output(recurrence, x.dtype, i, [*reads, x, entering], of_all)
        kind = x.dtype if i == recurrence.state else dtype
        return jnp.zeros(shape, kind) if d is None else jnp.broadcast_to(d, shape).astype(kind)

    return [change(i) for i in wanted]


def _cotangents(*operands, recurrence: Recurrence, moving, **params):
    """The transpose of `_differential` in the changes: in their place it takes the outputs' cotangents."""
    count = len(recurrence.operands) + 1
    fixed, cts = operands[:count], operands[count:]
    function = functools.partial(_differential, *fixed, recurrence=recurrence, moving=moving, **params)
    like = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in _moving_operands(fixed, recurrence, moving)]
    return list(jax.linear_transpose(function, *like)(list(cts)))


def _moving_operands(operands, recurrence, moving):
    named = dict(zip(recurrence.operands, operands))
    return [named[name] for name in moving]


def _bind_linear(inputs, weights, initial, *, reverse, shift, time_axis, dtype, implementation):
    recurrence = linear(reverse=reverse, weight_shift=shift, initial=initial is not None)
    operands = (inputs, weights) if initial is None else (inputs, weights, initial)
    return bind(
        affine_scan_p,
        *operands,
        recurrence=recurrence,
        time_axis=time_axis,
        dtype=dtype,
        wanted=(0,),
        implementation=implementation,
    )[0]


def _transpose(cotangents, inputs, weights, *initial, recurrence, time_axis, dtype, wanted, implementation):
    """The scan in the other direction, with its weights read one step further on."""
    if not is_linear(recurrence) or ad.is_undefined_primal(weights):
        raise NotImplementedError("affine_scan is linear in its inputs and its initial state only.")
    cts = [c for c in cotangents if not isinstance(c, ad.Zero)]
    if not cts:
        return [ad.Zero(a.aval) if ad.is_undefined_primal(a) else None for a in (inputs, weights, *initial)]
    state = plain.compute_dtype(dtype)
    shift = recurrence.reads.weight.shift
    back = 1 if recurrence.reverse else -1
    ct = _bind_linear(
        sum(c.astype(state) for c in cts),
        weights,
        None,
        reverse=not recurrence.reverse,
        shift=0 if shift else -back,
        time_axis=time_axis,
        dtype=state,
        implementation=implementation,
    )
    result: list[Any] = [None, None, *([None] * len(initial))]
    if ad.is_undefined_primal(inputs):
        result[0] = unbroadcast(ct, inputs.aval.shape).astype(inputs.aval.dtype)
    if initial and ad.is_undefined_primal(initial[0]):
        w = weights.astype(state)
        first = 1 if recurrence.reverse else -1
        if w.shape[time_axis] != 1:
            w = edge_step(w, first, time_axis)
        seed = scaled(edge_step(ct, first, time_axis), w)
        result[2] = unbroadcast(seed, initial[0].aval.shape).astype(initial[0].aval.dtype)
    return result


differentiate(affine_scan_p, jvp=_jvp, transpose=_transpose)


def _types_of_changes(*avals, recurrence, time_axis, dtype, wanted, **_):
    shape, state = plain.output_shape(avals, time_axis), plain.compute_dtype(dtype)
    return [result_aval(avals, shape, state if i == recurrence.state else dtype) for i in wanted]


def _types_of_cotangents(*avals, recurrence, moving, **_):
    return [retyped(a, a.shape, a.dtype, a.sharding) for a in _moving_operands(avals, recurrence, moving)]


def _batch_of(primitive: Callable[[], Primitive]):
    """What moves is batched as the changes are, so that none is summed over the new axis."""

    def batch(args, dims, *, recurrence, moving, time_axis, **params):
        args, axis = aligned(args, dims)
        size = next(a.shape[axis] for a, d in zip(args, dims, strict=True) if d is not None)
        fixed = {i for i, name in enumerate((*recurrence.operands, "state")) if name not in moving}
        args = [
            a if i in fixed else jnp.broadcast_to(a, (*a.shape[:axis], size, *a.shape[axis + 1 :]))
            for i, a in enumerate(args)
        ]
        params |= {"recurrence": recurrence, "moving": moving, "time_axis": time_axis + (axis <= time_axis)}
        results = bind(primitive(), *args, **params)
        return results, [axis] * len(results)

    return batch


def _jvp_of(primitive: Callable[[], Primitive], definition):
    """Linear in what follows the scan's state; what is before it may move too."""

    def jvp(primals, tangents, **params):
        count = len(params["recurrence"].operands) + 1
        if _moving(tangents[:count]):
            return _jvp_of_moving(lambda full: definition(*full, **params), primals, _moving(tangents))
        changes = [ad.instantiate_zeros(t) for t in tangents[count:]]
        return bind(primitive(), *primals, **params), bind(primitive(), *primals[:count], *changes, **params)

    return jvp


def _transpose_of(primitive: Callable[[], Primitive], lists: str):
    """By the other primitive, whose parameter `lists` says of which operands or outputs a cotangent is given."""

    def transpose(cts, *operands, **params):
        count = len(params["recurrence"].operands) + 1
        given = {name: ct for name, ct in zip(params[lists], cts, strict=True) if not isinstance(ct, ad.Zero)}
        linear_in = operands[count:]
        if given:
            params[lists] = tuple(given)
            results = bind(primitive(), *operands[:count], *given.values(), **params)
        else:
            results = [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in linear_in]
        return [None] * count + [r if ad.is_undefined_primal(x) else None for x, r in zip(linear_in, results)]

    return transpose


def _lower_cotangents_on_cpu(ctx, *operands, recurrence, implementation, **params):
    """By one loop where the scan is a loop too."""
    implementation = implementation_on("cpu", implementation)
    layout = {"recurrence": recurrence, "time_axis": params["time_axis"], "moving": params["moving"]}
    avals = ctx.avals_in[: len(recurrence.operands)]
    if (
        implementation in ("chunked_scan", "scan")
        and not is_split(ctx)
        and by_loop.one_loop_suits(avals, chunked=implementation == "chunked_scan", **layout)
    ):
        return mlir.lower_fun(by_loop.cotangents, multiple_results=True)(
            ctx, *operands, recurrence=recurrence, **params
        )
    return _lower_cotangents(ctx, *operands, recurrence=recurrence, implementation=implementation, **params)


_lower_cotangents = mlir.lower_fun(_cotangents, multiple_results=True)

differential_p = define(
    "differential",
    abstract_eval=_types_of_changes,
    batch=_batch_of(lambda: differential_p),
    jvp=_jvp_of(lambda: differential_p, _differential),
    transpose=_transpose_of(lambda: cotangents_p, "wanted"),
    lower={None: mlir.lower_fun(_differential, multiple_results=True)},
    multiple_results=True,
)

cotangents_p = define(
    "cotangents",
    abstract_eval=_types_of_cotangents,
    batch=_batch_of(lambda: cotangents_p),
    jvp=_jvp_of(lambda: cotangents_p, _cotangents),
    transpose=_transpose_of(lambda: differential_p, "moving"),
    lower={None: _lower_cotangents, "cpu": _lower_cotangents_on_cpu},
    multiple_results=True,
)
