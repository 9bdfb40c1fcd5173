"""The one primitive, `affine_scan_p`, and its rules.

Operands have one rank, except that those of a weighted sum have one axis more, the last, for its terms. On every other
axis an operand has the full size or 1 (it is then the same all along it), except that on `time_axis` one may hold T + 1
steps. Every axis but these two is batch.

Parameters: `recurrence`; `time_axis`; `dtype` of the outputs; `wanted`, the indices of the outputs asked for, or
COMPOSITE; `implementation`, a name or None for the platform's own.

Derivatives. Let a backward scan be x[t] = u[t] + w[t] x[t+1] (a forward one reads t-1 for t+1). Its differential is

    dx[t] = du[t] + dw[t] x[t+1] + w[t] dx[t+1],

which is the same bare recurrence with the inputs du + dw * entering, where entering[t] = x[t+1]: the JVP binds this
primitive once more, and higher orders follow. With the algebra around the scan, (w, u) = coefficients(s) and
y = outputs(s, x, entering), du and dw are differentials of the coefficients at ds, and dy is that of the outputs at
(ds, dx, dx entering). These are sums of partial * tangent, and `plain.partials` has the partials. What JAX will
differentiate again is made of this primitive, that one, `scaled`, `shifted` and what is linear, and of nothing else.

The bare recurrence is linear in u and in the initial state x0. From x = u + W x, with W x = w * entering, the transpose
in u solves c = ct + W^T c:

    c[t] = ct[t] + w[t-1] c[t-1],

the scan in the other direction, in which step t applies the weight of the step before it, t-1: the same weights, read
with a shift of one step. x0 enters only the first step in scan order, as w x0, so that its cotangent is w c there.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from rltriton_jax.scan.implementation import resolve_implementation
from rltriton_jax.scan.jax_internals import ad, check_under_checkify, drop_unused_outputs, zero_tangent
from rltriton_jax.scan.lowering import LOWERINGS
from rltriton_jax.scan.plain import scan as plain
from rltriton_jax.scan.plain.neighbours import edge_step, shifted
from rltriton_jax.scan.plain.partials import coefficients_of, differential, evaluate, outputs_of
from rltriton_jax.scan.plain.products import scaled, unbroadcast
from rltriton_jax.scan.recurrence import COMPOSITE, Recurrence, is_linear, linear, without_sums
from rltriton_jax.scan.rules import aligned, bind, define, result_aval


def affine_scan(
    recurrence: Recurrence, operands: Sequence[jax.Array], *, time_axis: int, dtype, implementation: str | None = None
) -> tuple[jax.Array, ...]:
    """Binds the primitive: all outputs of `recurrence`, of the operands' common shape with T steps."""
    params = {
        "recurrence": recurrence,
        "time_axis": time_axis,
        "dtype": jnp.dtype(dtype),
        "wanted": tuple(range(recurrence.num_outputs)),
        "implementation": resolve_implementation(implementation),
    }
    return tuple(_bind_as_one(*operands, params=tuple(params.items())))


@functools.partial(jax.jit, static_argnames="params", inline=True)
def _bind_as_one(*operands, params):
    """An eager call and each of its derivatives run as one program.

    Only what comes out of it does `jax.debug_nans` look at, and not garbage on its way to where it is left out.
    """
    return bind(affine_scan_p, *operands, **dict(params))


def _abstract_eval(*avals, recurrence, time_axis, dtype, wanted, implementation):
    shape = plain.output_shape(avals, time_axis)
    state = plain.compute_dtype(dtype)
    if wanted == COMPOSITE:
        return [result_aval(avals, (*shape[:time_axis], 1, *shape[time_axis + 1 :]), state)] * 2
    return [result_aval(avals, shape, state if i == recurrence.state else dtype) for i in wanted]


def _check_flags(*operands, recurrence, **_):
    """What a caller cannot see of traced flags: each holds 0 or 1. A bool cannot hold anything else."""
    reads = [r for each in (recurrence, *dict(recurrence.carried).values()) for r in each.reads]
    flags = {r.operand for r in reads if r.kind == "flag"}
    for name, x in zip(recurrence.operands, operands, strict=True):
        if name in flags and x.dtype != jnp.bool_:
            checkify.debug_check(jnp.all((x == 0) | (x == 1)), f"{name} holds flags that are neither 0 nor 1")


def _dce(used, *rest):
    eqn = rest[-1]
    if not any(used):
        return [False] * len(eqn.invars), None
    if eqn.params["wanted"] == COMPOSITE:
        return [True] * len(eqn.invars), eqn
    keep = [i for i, u in enumerate(used) if u]
    params = {**eqn.params, "wanted": tuple(eqn.params["wanted"][i] for i in keep)}
    return [True] * len(eqn.invars), eqn.replace(outvars=[eqn.outvars[i] for i in keep], params=params)


def _batch(args, dims, *, time_axis, **params):
    args, axis = aligned(args, dims)
    results = bind(affine_scan_p, *args, time_axis=time_axis + (axis <= time_axis), **params)
    return results, [axis] * len(results)


def _entering_finite(x, w, initial, *, time_axis, reverse):
    """The state that enters each step, as the factor of the weight's tangent: garbage behind a cut counts as 0."""
    entering = plain.entering(x, initial, time_axis=time_axis, reverse=reverse)
    return jnp.where((w == 0) & ~jnp.isfinite(entering), 0, entering)


def _finite(w):
    """The weights by which tangents go on.

    One that is not finite has made the results of its own sequence so; the tangents of others must stay as they are.
    """
    return jnp.where(jnp.isfinite(w), w, 0)


def _plus(a, b):
    """a + b, where None is 0."""
    return b if a is None else a if b is None else a + b


def _moving(tangents):
    return [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]


def _jvp_of_moving(function, primals, tangents):
    """`function` of a list of all primals, and its tangent.

    Primals without a tangent are held fixed, so that no array of zeros is made for them.
    """
    moving = _moving(tangents)

    def of(*moved):
        full = list(primals)
        for i, value in zip(moving, moved, strict=True):
            full[i] = value
        return function(full)

    return jax.jvp(of, tuple(primals[i] for i in moving), tuple(tangents[i] for i in moving))


def _with_sums_taken(recurrence, primals, tangents, dtype):
    """The recurrence, primals and tangents of which every weighted sum is an operand like the others."""
    summed, sums = without_sums(recurrence)
    known = dict(zip(recurrence.operands, tangents, strict=True))
    moving = {recurrence.operands[i] for i in _moving(tangents)}
    taken, dtaken = _jvp_of_moving(lambda full: plain.sums_taken(recurrence, full, dtype=dtype)[1], primals, tangents)
    for name, x, dx in zip(summed.operands, taken, dtaken, strict=True):
        if name in sums:
            still = moving.isdisjoint(sums[name])
            known[name] = zero_tangent(x) if still else dx
    return summed, taken, [known[name] for name in summed.operands]


def _jvp(primals, tangents, *, recurrence, wanted, **params):
    """dx is the bare recurrence of du + dw * entering; all else is the derivative of the algebra."""
    if recurrence.carried:
        return _jvp_of_moving(lambda full: _in_stages(full, recurrence, wanted=wanted, **params), primals, tangents)
    if any(r.weights is not None for r in recurrence.reads):
        recurrence, primals, tangents = _with_sums_taken(recurrence, primals, tangents, params["dtype"])
    with_state = wanted if recurrence.state in wanted else (*wanted, recurrence.state)
    results = bind(affine_scan_p, *primals, recurrence=recurrence, wanted=with_state, **params)
    x = results[with_state.index(recurrence.state)]
    results = results[: len(wanted)]

    rule = _jvp_linear if is_linear(recurrence) else _jvp_fused
    outs = rule(primals, tangents, x, recurrence=recurrence, wanted=wanted, **params)
    return results, outs


def _in_stages(operands, recurrence, *, dtype, wanted, **params):
    """The outputs by one scan for each recurrence that is carried, and one for the last."""
    scan = functools.partial(bind, affine_scan_p, **params)
    recurrence, operands = plain.in_stages(recurrence, operands, scan, dtype=dtype)
    return bind(affine_scan_p, *operands, recurrence=recurrence, dtype=dtype, wanted=wanted, **params)


def _jvp_linear(primals, tangents, x, *, recurrence, time_axis, dtype, wanted, implementation):
    weights = primals[1]
    dinputs, dweights, *dinitial = tangents
    shift = recurrence.reads.weight.shift
    inputs = None if isinstance(dinputs, ad.Zero) else dinputs.astype(x.dtype)
    if not isinstance(dweights, ad.Zero):
        in_place = shift == 0 or weights.shape[time_axis] == 1
        w, dw = (a if in_place else shifted(a, shift, None, time_axis) for a in (weights, dweights))
        initial = plain.initial_state(recurrence, primals, dtype)
        entering = _entering_finite(x, w, initial, time_axis=time_axis, reverse=recurrence.reverse)
        inputs = _plus(inputs, scaled(dw.astype(x.dtype), entering))
    if inputs is None:
        inputs = jnp.zeros(x.shape, x.dtype)
    dx = _bind_linear(
        inputs,
        _finite(weights),
        None if not dinitial or isinstance(dinitial[0], ad.Zero) else dinitial[0],
        reverse=recurrence.reverse,
        shift=shift,
        time_axis=time_axis,
        dtype=x.dtype,
        implementation=implementation,
    )
    return [dx if i == recurrence.state else dx.astype(dtype) for i in wanted]


def _jvp_fused(primals, tangents, x, *, recurrence, time_axis, dtype, wanted, implementation):
    layout = {"time_axis": time_axis, "reverse": recurrence.reverse}
    names = {recurrence.operands[i] for i in _moving(tangents)}
    initial = plain.initial_state(recurrence, primals, dtype)
    dinitial = None
    if recurrence.initial in names:
        dinitial = tangents[recurrence.operands.index(recurrence.initial)].astype(x.dtype)

    gather = functools.partial(plain.gather, recurrence, time_axis=time_axis, dtype=dtype)
    reads, dreads = _jvp_of_moving(gather, primals, tangents)
    changes = {
        i: dreads[i] for i, r in enumerate(recurrence.reads) if r.kind == "number" and {r.operand, r.beyond} & names
    }
    coefficients = coefficients_of(recurrence, x.dtype)
    w = evaluate(coefficients, 0, reads)
    dw, inputs = (differential(coefficients, i, reads, changes) for i in (0, 1))
    if dw is not None:
        inputs = _plus(inputs, scaled(dw, _entering_finite(x, w, initial, **layout)))
    inputs = jnp.zeros(x.shape, x.dtype) if inputs is None else jnp.broadcast_to(inputs, x.shape)
    dx = _bind_linear(
        inputs,
        _finite(w),
        dinitial,
        reverse=recurrence.reverse,
        shift=0,
        time_axis=time_axis,
        dtype=x.dtype,
        implementation=implementation,
    )

    arguments = [*reads, x, plain.entering(x, initial, **layout)]
    changes |= {len(reads): dx, len(reads) + 1: plain.entering(dx, dinitial, **layout)}
    outputs = outputs_of(recurrence, x.dtype)

    def change(i):
        d = dx if i == recurrence.state else differential(outputs, i, arguments, changes)
        kind = x.dtype if i == recurrence.state else dtype
        return jnp.zeros(x.shape, kind) if d is None else jnp.broadcast_to(d, x.shape).astype(kind)

    return [change(i) for i in wanted]


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


affine_scan_p = define(
    "affine_scan",
    abstract_eval=_abstract_eval,
    batch=_batch,
    jvp=_jvp,
    transpose=_transpose,
    lower=LOWERINGS,
    multiple_results=True,
)
drop_unused_outputs(affine_scan_p, _dce)
check_under_checkify(affine_scan_p, _check_flags)
