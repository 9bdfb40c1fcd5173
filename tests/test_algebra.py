"""Proofs on symbols: the composition is associative, and each recurrence is its unrolled definition."""

import functools
import importlib
import itertools
import types

import pytest
import sympy

from rltriton_jax.estimators import (
    algebra,
    discounted_returns,
    episodic_prefix_sum,
    gae,
    lambda_returns,
    retrace,
    vtrace,
)
from rltriton_jax.estimators import eligibility_traces as traces
from rltriton_jax.scan import recurrence
from rltriton_jax.scan.plain import scan as plain


class Symbolic:
    """jnp, or triton.language, for symbols: the flags are plain booleans, so that a select picks a branch."""

    @staticmethod
    def where(condition, x, y):
        return x if condition else y

    @staticmethod
    def exp(x):
        return sympy.exp(x)

    @staticmethod
    def isinf(x):
        return x in (sympy.oo, -sympy.oo)


def on_symbols(function):
    """A shipped function of jnp or of Triton, run on symbols; so are the functions that it calls."""
    function = getattr(function, "fn", function)
    names = dict(function.__globals__, jnp=Symbolic, tl=Symbolic)
    for name in function.__code__.co_names:
        if isinstance(value := names.get(name), types.FunctionType) or hasattr(value, "fn"):
            names[name] = on_symbols(value)
    return types.FunctionType(function.__code__, names, function.__name__)


def lax_compose(older, newer):
    return on_symbols(plain._compose)(older, newer)


def kernel_compose(older, newer):
    return on_symbols(kernel().compose)(*older, *newer)


def kernel():
    pytest.importorskip("triton", reason="the kernel needs triton")
    return importlib.import_module("rltriton_jax.scan.triton.kernel")


ONE = (sympy.Integer(1), sympy.Integer(0))
"""The identity map."""


def maps(count):
    return [tuple(sympy.symbols(f"w{i} u{i}")) for i in range(count)]


def equal(a, b):
    return all(sympy.expand(x - y) == 0 for x, y in zip(a, b, strict=True))


COMPOSE = pytest.mark.parametrize("compose", [lax_compose, kernel_compose], ids=lambda f: f.__name__)


@COMPOSE
def test_composition_is_associative_with_an_identity(compose):
    a, b, c = maps(3)
    assert equal(compose(compose(a, b), c), compose(a, compose(b, c)))
    assert equal(compose(ONE, a), a) and equal(compose(a, ONE), a)


@COMPOSE
def test_a_composite_is_the_maps_applied_in_order(compose):
    x = sympy.Symbol("x")
    (w, u), expected = functools.reduce(compose, maps(4)), x
    for weight, constant in maps(4):
        expected = constant + weight * expected
    assert equal([w * x + u], [expected])


def test_a_weight_of_0_forgets_everything_older():
    """On numbers, since 0 * nan is no symbol's: what is selected out reaches nothing. The kernel's NaN counts as 0."""
    nan, zero, three = float("nan"), 0.0, 3.0
    assert lax_compose((nan, nan), (zero, three)) == (0, 3)
    w, u = kernel_compose((nan, nan), (zero, three))
    assert u == 3 and on_symbols(kernel().apply)(w, u, 5.0) == 3


def test_the_exclusive_composite_is_all_but_the_newest():
    """What the kernel scans across groups, in any bracketing: the composite of all, and of all but the newest."""
    exclusive = on_symbols(kernel().compose_exclusive)
    combine = lambda a, b: exclusive(*a, *b)
    a, b, c, d = ((*m, *ONE) for m in maps(4))
    for w, u, but_w, but_u in (combine(combine(combine(a, b), c), d), combine(combine(a, b), combine(c, d))):
        assert equal((w, u), functools.reduce(kernel_compose, maps(4)))
        assert equal((but_w, but_u), functools.reduce(kernel_compose, maps(3)))


class Flag(int):
    """A boolean with the operators that the algebra uses."""

    def __or__(self, other):
        return Flag(int(self) | int(other))

    def __and__(self, other):
        return Flag(int(self) & int(other))

    def __invert__(self):
        return Flag(1 - int(self))


NO, YES = Flag(0), Flag(1)
T = 3


def clip(log_rho, bound):
    return sympy.Min(bound, sympy.exp(log_rho), evaluate=False)


@pytest.fixture(autouse=True)
def symbolic(monkeypatch):
    for module in (algebra, gae, vtrace, retrace, lambda_returns, discounted_returns, traces, episodic_prefix_sum):
        monkeypatch.setattr(module, "jnp", Symbolic, raising=False)
    for module in (vtrace, retrace):
        monkeypatch.setattr(module, "clipped_ratio", clip)


def run(module, steps, reverse, outputs=None):
    """The recurrence over what each step reads, with what it outputs at each."""
    x, out = sympy.Integer(0), [None] * len(steps)
    outputs = outputs or getattr(module, "outputs", recurrence.state_alone)
    for t in reversed(range(len(steps))) if reverse else range(len(steps)):
        s = module.Reads(**steps[t])
        w, u = module.coefficients(s)
        entering, x = x, u + w * x
        out[t] = outputs(s, x, entering)
    return out


def backward(t, te, tr, **more):
    """What every backward estimator reads at step t."""
    return dict(reward=r[t], terminated=te, truncated=tr, gamma=g) | more


def at_last(t):
    return YES if t == T - 1 else NO


def same(a, b):
    return sympy.simplify(sympy.expand(a - b)) == 0


r, v, n, f, lr, q, e, z = (sympy.symbols(f"{s}0:{T + 1}") for s in ("r", "v", "n", "f", "l", "q", "e", "g"))
g, lam = sympy.symbols("gamma lambda")
FLAGS = list(itertools.product([(NO, NO), (YES, NO), (NO, YES), (YES, YES)], repeat=T))


def successor(t, term, trunc, following=v[1:]):
    """V' of step t; `following` is n where a network of its own gives the values of the successors."""
    return 0 if term else f[t] if trunc else following[t]


@pytest.mark.parametrize("flags", FLAGS, ids=lambda fs: "".join(".tub"[a + 2 * b] for a, b in fs))
def test_gae_is_the_sum_of_discounted_errors_up_to_the_episodes_end(flags):
    steps = [
        backward(t, te, tr, value=v[t], next_value=v[t + 1], final_value=f[t], at_final=tr, zero_at_truncation=NO,
                 lambda_=lam)
        for t, (te, tr) in enumerate(flags)
    ]  # fmt: skip
    for t, (advantage, target) in enumerate(run(gae, steps, reverse=True)):
        expected = 0
        for k in range(t, T):
            expected += (g * lam) ** (k - t) * (r[k] + g * successor(k, *flags[k]) - v[k])
            if flags[k][0] or flags[k][1]:
                break
        assert same(advantage, expected) and same(target, expected + v[t])


@pytest.mark.parametrize("flags", FLAGS[::5], ids=str)
@pytest.mark.parametrize("networks", [1, 2])
def test_vtrace_is_its_unrolled_definition(networks, flags):
    rho, c, pg = sympy.symbols("rho_bar c_bar pg_bar")
    following = v[1:] if networks == 1 else n
    outputs = vtrace.outputs if networks == 1 else vtrace.outputs_with_next_values
    steps = [
        backward(t, te, tr, value=v[t], value_ahead=v[t + 1], next_value=following[t], final_value=f[t], at_final=tr,
                 log_rho=lr[t], zero_at_truncation=NO, last=at_last(t), lambda_=lam, clip_rho=rho, clip_c=c,
                 clip_pg_rho=pg)
        for t, (te, tr) in enumerate(flags)
    ]  # fmt: skip
    results = run(vtrace, steps, reverse=True, outputs=outputs)
    for t, (advantage, target) in enumerate(results):
        error, weight = 0, 1
        for k in range(t, T):
            error += weight * clip(lr[k], rho) * (r[k] + g * successor(k, *flags[k], following) - v[k])
            weight = weight * g * lam * clip(lr[k], c)
            if flags[k][0] or flags[k][1]:
                break
        goes_on = not (flags[t][0] or flags[t][1] or t == T - 1)
        better = (1 - lam) * v[t + 1] + lam * results[t + 1][1] if goes_on else successor(t, *flags[t], following)
        assert same(target, v[t] + error) and same(advantage, clip(lr[t], pg) * (r[t] + g * better - v[t]))


@pytest.mark.parametrize("flags", FLAGS[::5], ids=str)
def test_retrace_is_its_unrolled_definition(flags):
    c, rho = sympy.symbols("c_bar rho_bar")
    steps = [
        backward(t, te, tr, q=q[t], q_ahead=q[t + 1], next_state_value=e[t], log_rho=lr[t], log_rho_ahead=lr[t + 1],
                 last=at_last(t), lambda_=lam, clip_c=c, clip_rho=rho)
        for t, (te, tr) in enumerate(flags)
    ]  # fmt: skip
    results = run(retrace, steps, reverse=True)
    for t, (advantage, target) in enumerate(results):
        expected, weight = q[t], 1
        for k in range(t, T):
            expected += weight * (r[k] + g * (0 if flags[k][0] else e[k]) - q[k])
            if flags[k][0] or flags[k][1] or k == T - 1:
                break
            weight = weight * g * lam * clip(lr[k + 1], c)
        stays = not (flags[t][0] or flags[t][1] or t == T - 1)
        better = results[t + 1][1] if stays else 0 if flags[t][0] else e[t]
        assert same(target, expected) and same(advantage, clip(lr[t], rho) * (r[t] + g * better - q[t]))


@pytest.mark.parametrize("flags", FLAGS[::3], ids=str)
def test_lambda_returns_mix_n_step_returns(flags):
    steps = [
        backward(t, te, tr, next_value=v[t + 1], final_value=f[t], at_final=tr, last=at_last(t), lambda_=lam)
        for t, (te, tr) in enumerate(flags)
    ]
    for t, (value,) in enumerate(run(lambda_returns, steps, reverse=True)):
        ends = next((k for k in range(t, T) if flags[k][0] or flags[k][1]), T - 1)
        n_step = lambda n, t=t: sum(g**i * r[t + i] for i in range(n)) + g**n * successor(t + n - 1, *flags[t + n - 1])
        length = ends - t + 1
        mixture = sum((1 - lam) * lam ** (n - 1) * n_step(n) for n in range(1, length)) + lam ** (length - 1) * n_step(
            length
        )
        assert same(value, mixture)


@pytest.mark.parametrize("flags", FLAGS[::3], ids=str)
def test_discounted_returns_are_sums_to_the_episodes_end(flags):
    boot = sympy.Symbol("boot")
    steps = [
        backward(t, te, tr, next_value=boot if t == T - 1 else 0, final_value=f[t], at_final=tr, last=at_last(t))
        for t, (te, tr) in enumerate(flags)
    ]
    for t, (value,) in enumerate(run(discounted_returns, steps, reverse=True)):
        ends = next((k for k in range(t, T) if flags[k][0] or flags[k][1]), T - 1)
        te, tr = flags[ends]
        tail = 0 if te else f[ends] if tr else boot
        assert same(value, sum(g ** (k - t) * r[k] for k in range(t, ends + 1)) + g ** (ends - t + 1) * tail)


def test_traces_and_prefix_sums_are_sums_since_the_episodes_start():
    for done in itertools.product([NO, YES], repeat=T):
        before = [NO, *done[:-1]]
        decays = [dict(gradient=z[t], done_before=before[t], gamma_before=g, lambda_before=lam) for t in range(T)]
        decayed = run(traces, decays, reverse=False)
        summed = run(episodic_prefix_sum, [dict(value=z[t], cut=before[t]) for t in range(T)], reverse=False)
        for t in range(T):
            start = max(k for k in range(t + 1) if k == 0 or before[k])
            assert same(decayed[t][0], sum((g * lam) ** (t - k) * z[k] for k in range(start, t + 1)))
            assert same(summed[t][0], sum(z[k] for k in range(start, t + 1)))
