"""Proofs on symbols: the composition is associative, and each recurrence is its unrolled definition."""

import itertools

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


def compose(older, newer):
    (w1, u1), (w2, u2) = older, newer
    return w2 * w1, w2 * u1 + u2


def test_composition_is_associative_with_an_identity():
    a, b, c = (sympy.symbols(f"w{i} u{i}") for i in range(3))
    left, right = compose(compose(a, b), c), compose(a, compose(b, c))
    assert all(sympy.expand(x - y) == 0 for x, y in zip(left, right))
    assert compose((1, 0), a) == a == compose(a, (1, 0))


def test_a_composite_is_the_maps_applied_in_order():
    maps, x = [sympy.symbols(f"w{i} u{i}") for i in range(4)], sympy.Symbol("x")
    whole = maps[0]
    for m in maps[1:]:
        whole = compose(whole, m)
    expected = x
    for w, u in maps:
        expected = u + w * expected
    assert sympy.expand(whole[0] * x + whole[1] - expected) == 0


def test_the_exclusive_composite_is_all_but_the_newest():
    """The pair (f, g) that the kernel scans: g of a combination is g2 after f1."""
    elements = [(sympy.symbols(f"w{i} u{i}"), (sympy.Integer(1), sympy.Integer(0))) for i in range(4)]
    pair = elements[0]
    for f, g in elements[1:]:
        pair = (compose(pair[0], f), compose(pair[0], g))
    but_newest = compose(compose(elements[0][0], elements[1][0]), elements[2][0])
    assert all(sympy.expand(a - b) == 0 for a, b in zip(pair[1], but_newest))


class Symbolic:
    """jnp for symbols: the flags are plain booleans, so that a select picks a branch."""

    @staticmethod
    def where(condition, x, y):
        return x if condition else y

    @staticmethod
    def exp(x):
        return sympy.exp(x)


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


@pytest.fixture(autouse=True)
def symbolic(monkeypatch):
    for module in (algebra, gae, vtrace, retrace, lambda_returns, discounted_returns, traces, episodic_prefix_sum):
        monkeypatch.setattr(module, "jnp", Symbolic)
    clipped = lambda log_rho, clip: sympy.Min(clip, sympy.exp(log_rho), evaluate=False)
    for module in (vtrace, retrace):
        monkeypatch.setattr(module, "clipped_ratio", clipped)


def run(module, rows, reverse):
    """The recurrence over rows of reads, with what it outputs at each step."""
    x, out = sympy.Integer(0), [None] * len(rows)
    for t in reversed(range(len(rows))) if reverse else range(len(rows)):
        w, u = module._coefficients(*rows[t])
        previous, x = x, u + w * x
        out[t] = module._outputs(*rows[t], x, previous)
    return out


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
    rows = [(r[t], v[t], v[t + 1], f[t], tr, te, tr, NO, g, lam) for t, (te, tr) in enumerate(flags)]
    for t, (advantage, target) in enumerate(run(gae, rows, reverse=True)):
        expected = 0
        for k in range(t, T):
            expected += (g * lam) ** (k - t) * (r[k] + g * successor(k, *flags[k]) - v[k])
            if flags[k][0] or flags[k][1]:
                break
        assert same(advantage, expected) and same(target, expected + v[t])


@pytest.mark.parametrize("flags", FLAGS[::5], ids=str)
def test_vtrace_is_its_unrolled_definition(flags):
    rho, c, pg = sympy.symbols("rho_bar c_bar pg_bar")
    clip = vtrace.clipped_ratio
    rows = [
        (r[t], v[t], v[t + 1], n[t], f[t], tr, lr[t], te, tr, NO, YES if t == T - 1 else NO, g, lam, rho, c, pg)
        for t, (te, tr) in enumerate(flags)
    ]
    results = run(vtrace, rows, reverse=True)
    for t, (advantage, target) in enumerate(results):
        error, weight = 0, 1
        for k in range(t, T):
            error += weight * clip(lr[k], rho) * (r[k] + g * successor(k, *flags[k], n) - v[k])
            weight = weight * g * lam * clip(lr[k], c)
            if flags[k][0] or flags[k][1]:
                break
        goes_on = not (flags[t][0] or flags[t][1] or t == T - 1)
        better = (1 - lam) * v[t + 1] + lam * results[t + 1][1] if goes_on else successor(t, *flags[t], n)
        assert same(target, v[t] + error) and same(advantage, clip(lr[t], pg) * (r[t] + g * better - v[t]))


@pytest.mark.parametrize("flags", FLAGS[::5], ids=str)
def test_retrace_is_its_unrolled_definition(flags):
    c, rho = sympy.symbols("c_bar rho_bar")
    clip = retrace.clipped_ratio
    rows = [
        (r[t], q[t], q[t + 1], e[t], lr[t], lr[t + 1], te, tr, YES if t == T - 1 else NO, g, lam, c, rho)
        for t, (te, tr) in enumerate(flags)
    ]
    results = run(retrace, rows, reverse=True)
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
    rows = [(r[t], v[t + 1], f[t], tr, te, tr, YES if t == T - 1 else NO, g, lam) for t, (te, tr) in enumerate(flags)]
    for t, (value,) in enumerate(run(lambda_returns, rows, reverse=True)):
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
    rows = [
        (r[t], boot if t == T - 1 else 0, f[t], tr, te, tr, YES if t == T - 1 else NO, g)
        for t, (te, tr) in enumerate(flags)
    ]
    for t, (value,) in enumerate(run(discounted_returns, rows, reverse=True)):
        ends = next((k for k in range(t, T) if flags[k][0] or flags[k][1]), T - 1)
        te, tr = flags[ends]
        tail = 0 if te else f[ends] if tr else boot
        assert same(value, sum(g ** (k - t) * r[k] for k in range(t, ends + 1)) + g ** (ends - t + 1) * tail)


def test_traces_and_prefix_sums_are_sums_since_the_episodes_start():
    for done in itertools.product([NO, YES], repeat=T):
        before = [NO, *done[:-1]]
        decayed = run(traces, [(z[t], before[t], g, lam) for t in range(T)], reverse=False)
        summed = run(episodic_prefix_sum, [(z[t], before[t]) for t in range(T)], reverse=False)
        for t in range(T):
            start = max(k for k in range(t + 1) if k == 0 or before[k])
            assert same(decayed[t][0], sum((g * lam) ** (t - k) * z[k] for k in range(start, t + 1)))
            assert same(summed[t][0], sum(z[k] for k in range(start, t + 1)))
