"""A million steps and none: errors of results and gradients against recurrences in float64."""

import jax
import numpy as np
import pytest
from cases import ESTIMATORS, arguments, outputs

import rltriton_jax as rtj
from rltriton_jax.bench.precision import scan

EPS = np.finfo(np.float32).eps
PLAIN = ("chunked_scan", "associative_scan", "scan")
MILLION = 10**6
KINDS = ("zero_mean", "one_sign")
SETTINGS = ((0.99, 0.95), (0.999, 1.0), (0.9999, 0.9999), (1.0, 1.0))


def later(x):
    """x one step later, of T + 1 steps: 0 is the first."""
    return np.concatenate([np.zeros_like(x[:1]), x])


def sooner(x):
    """x with a step of 0 behind its T: from the second on it is x one step sooner."""
    return np.concatenate([x, np.zeros_like(x[:1])])


# Each takes its data and the cotangents of its results, and gives its results and their gradients by that data: the
# gradient of a scan is the scan of the cotangents in the other direction. `minus` is the sign of what is subtracted:
# with 1 and absolute data and cotangents these are the scales of the errors.


def gae(r, v, c1, c2, *, gamma, lambda_, minus):
    x = scan(gamma * lambda_, r + gamma * v[1:] + minus * v[:-1], reverse=True)
    y = scan(gamma * lambda_, c1 + c2, reverse=False)
    return (x, x + v[:-1]), (y, later(gamma * y) + sooner(minus * y + c2))


def vtrace(r, v, log_rho, c1, c2, *, gamma, lambda_, minus):
    rho = np.exp(log_rho)
    clipped = np.minimum(1, rho)
    w = gamma * lambda_ * clipped
    delta = r + gamma * v[1:] + minus * v[:-1]
    x = scan(w, clipped * delta, reverse=True)
    error = delta + gamma * lambda_ * sooner(x)[1:]
    y = scan(later(w)[:-1], c2 + later(w * c1)[:-1], reverse=False)
    by_delta = clipped * (y + c1)
    by_log_rho = np.where(rho < 1, rho * (y + c1) * error, 0)
    by_v = later(gamma * by_delta) + sooner(minus * by_delta + c2)
    return (clipped * error, x + v[:-1]), (by_delta, by_v, by_log_rho)


def retrace(r, q, log_rho, expected, c1, c2, *, gamma, lambda_, minus):
    rho = np.exp(log_rho)
    clipped = np.minimum(1, rho)
    x = scan(gamma * lambda_ * sooner(clipped)[1:], r + gamma * expected + minus * q, reverse=True)
    error = r + gamma * np.concatenate([(q + x)[1:], expected[-1:]]) + minus * q
    c1_ahead = gamma * clipped * c1
    y = scan(gamma * lambda_ * clipped, c2 + later(c1_ahead)[:-1], reverse=False)
    by_clipped = c1 * error + later(gamma * lambda_ * y)[:-1] * x
    by_q = minus * (y + clipped * c1) + c2 + later(c1_ahead)[:-1]
    by_expected = np.concatenate([gamma * y[:-1], gamma * y[-1:] + c1_ahead[-1:]])
    by_log_rho = np.where(rho < 1, rho * by_clipped, 0)
    return (clipped * error, x + q), (y + clipped * c1, by_q, by_log_rho, by_expected)


def lambda_returns(r, v, c, *, gamma, lambda_, minus):
    last = np.arange(len(r))[:, None] == len(r) - 1
    share = gamma * np.where(last, 1, 1 - lambda_)
    x = scan(np.where(last, 0, gamma * lambda_), r + share * v[1:], reverse=True)
    y = scan(gamma * lambda_, c, reverse=False)
    return (x,), (y, later(share * y))


def discounted_returns(r, bootstrap, c, *, gamma, minus):
    x = scan(gamma, np.concatenate([r[:-1], r[-1:] + gamma * bootstrap]), reverse=True)
    y = scan(gamma, c, reverse=False)
    return (x,), (y, gamma * y[-1])


def eligibility_traces(g, c, *, gamma, lambda_, minus):
    return (scan(gamma * lambda_, g, reverse=False),), (scan(gamma * lambda_, c, reverse=True),)


def episodic_prefix_sum(x, c, *, minus):
    return (scan(1, x, reverse=False),), (scan(1, c, reverse=True),)


DEFINITIONS = {
    gae: ("rewards", "values"),
    vtrace: ("rewards", "values", "log_rhos"),
    retrace: ("rewards", "q_values", "log_rhos", "next_state_values"),
    lambda_returns: ("rewards", "values"),
    discounted_returns: ("rewards", "bootstrap_value"),
    eligibility_traces: ("gradients",),
    episodic_prefix_sum: ("inputs",),
}
NAMES = {f.__name__: f for f in DEFINITIONS}


def hyperparameters(name, gamma, lambda_):
    return {
        "episodic_prefix_sum": {},
        "discounted_returns": {"gamma": gamma},
    }.get(name, {"gamma": gamma, "lambda_": lambda_})


def drawn(name, rng, steps, rows, kind):
    """Data and cotangents in float32: normal, or all the same, whose roundings add up."""

    def array(argument):
        shape = {"bootstrap_value": (rows,), "values": (steps + 1, rows)}.get(argument, (steps, rows))
        if argument == "log_rhos":  # nearly all clipped, so that the memory is long; none at the kink
            x = 0.3 + 0.1 * rng.normal(size=shape)
            return np.where(np.abs(x) < 1e-3, 1e-3, x).astype("float32")
        return (rng.normal(size=shape) if kind == "zero_mean" else np.full(shape, 0.1)).astype("float32")

    count = 2 if name in ("gae", "vtrace", "retrace") else 1
    return {a: array(a) for a in DEFINITIONS[NAMES[name]]}, tuple(array("cotangent") for _ in range(count))


def expected(name, data, cotangents, hyper, *, minus):
    wide = lambda k, x: np.asarray(x, np.float64) if minus < 0 or k == "log_rhos" else np.abs(np.asarray(x, np.float64))
    known = [*(wide(k, x) for k, x in data.items()), *(wide("cotangent", c) for c in cotangents)]
    results, gradients = NAMES[name](*known, **{k: np.float64(np.float32(x)) for k, x in hyper.items()}, minus=minus)
    return {**{f"output {i}": x for i, x in enumerate(results)}, **dict(zip(data, gradients, strict=True))}


def computed(name, data, cotangents, hyper, implementation):
    @jax.jit
    def both(data, cotangents, hyper):
        f = lambda data: outputs(getattr(rtj, name)(**data, **hyper, implementation=implementation))
        results, pull = jax.vjp(f, data)
        return results, pull(cotangents)[0]

    results, gradients = both(data, cotangents, hyper)
    return {**{f"output {i}": x for i, x in enumerate(results)}, **gradients}


def bound(steps, kind, implementation, gamma=1.0, lambda_=1.0):
    """In units of eps * scan(|w|, |u|), as README's section on precision and `scan/plain/chunks.py` have it."""
    weight = np.multiply(gamma, lambda_)
    counting = 1 / np.maximum(1 / steps, 1 - weight)
    if kind == "one_sign":
        return 4 + 1.25 * counting
    weight_is_rounded = (weight < 1) & ((np.asarray(lambda_) < 1) | (implementation == "associative_scan"))
    return 4 + np.sqrt(counting) * weight_is_rounded


def check(name, rng, steps, rows, kind, implementations, gamma=1.0, lambda_=1.0):
    data, cotangents = drawn(name, rng, steps, rows, kind)
    hyper = hyperparameters(name, gamma, lambda_)
    want = expected(name, data, cotangents, hyper, minus=-1)
    scale = expected(name, data, cotangents, hyper, minus=1)
    for implementation in implementations:
        got = computed(name, data, cotangents, hyper, implementation)
        limit = bound(steps, kind, implementation, **hyper)
        for what in want:
            error = np.abs(np.asarray(got[what], np.float64) - want[what]) / (EPS * scale[what] + 1e-300)
            error = np.max(np.atleast_2d(error), 0)
            # The gradient by a ratio is a product of two scans.
            allowed = 2 * limit if what == "log_rhos" else limit
            print(name, implementation, what, kind, hyper, error.round(2), np.round(allowed, 2))
            assert np.all(error <= allowed), f"{implementation}, {what}: {error} * eps * scale, {allowed} allowed"


@pytest.mark.parametrize("name", NAMES)
def test_a_million_steps_on_the_default_implementation(name, rng):
    check(name, rng, MILLION, 1, "zero_mean", [None], 0.99, 0.95)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", NAMES)
def test_the_interpreted_kernel_over_many_tiles(name, rng):
    check(name, rng, 3000, 1, "zero_mean", ["interpret"], 0.99, 0.95)


@pytest.mark.parametrize("implementation", PLAIN)
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_grows_with_the_terms_that_count(kind, implementation, rng):
    gammas, lambdas = np.array(SETTINGS).T
    check("eligibility_traces", rng, 50_000, len(SETTINGS), kind, [implementation], gammas, lambdas)


@pytest.mark.nightly
@pytest.mark.parametrize(("gamma", "lambda_"), SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("name", NAMES)
def test_a_million_steps_everywhere(name, rows, kind, gamma, lambda_, rng):
    check(name, rng, MILLION, rows, kind, PLAIN, gamma, lambda_)


@pytest.mark.parametrize("implementation", [*PLAIN, "interpret"])
@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0)])
@pytest.mark.parametrize("case", ESTIMATORS, ids=str)
def test_nothing_in_gives_nothing_out(case, shape, implementation, rng):
    steps, rows = shape
    for result in outputs(case.function(**arguments(case, rng, steps, (rows,)), implementation=implementation)):
        assert result.shape == shape and result.dtype == np.float32


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 5, 16, 17])
def test_the_scan_in_blocks_is_the_loop(steps, reverse, rng):
    w, u = rng.normal(size=(2, steps, 3))
    state, want = 0.0, []
    for t in range(steps)[:: -1 if reverse else 1]:
        state = u[t] + w[t] * state
        want.append(state)
    np.testing.assert_allclose(scan(w, u, reverse=reverse), want[:: -1 if reverse else 1], rtol=1e-12)
