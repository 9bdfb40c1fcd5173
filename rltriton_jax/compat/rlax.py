"""The multistep functions of rlax, as of rlax 0.1.9: one sequence [T], batched by `jax.vmap`.

Index t of an argument that ends in `_tm1` is step t; of one that ends in `_t` it is what step t led to. `discount_t` is
gamma, and 0 where step t terminated.

Results have the dtype that rlax's arithmetic gives them: all arguments promoted by JAX's rules, so that Python scalars
have no say, integers and booleans take the floats' dtype, and arrays of hyperparameters do count. In between everything
is float32 (float64 where that is the result), and is rounded once, at the end.

`lambda_returns`, `discounted_returns`, `n_step_bootstrapped_returns`, `importance_corrected_td_errors`,
`truncated_generalized_advantage_estimation`, `vtrace`, `leaky_vtrace`, `vtrace_td_error_and_advantage`,
`leaky_vtrace_td_error_and_advantage`, `general_off_policy_returns_from_q_and_v`,
`general_off_policy_returns_from_action_values`, `retrace`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rltriton_jax.estimators.arguments import index, of_arrays
from rltriton_jax.estimators.linear_recurrence import linear_recurrence
from rltriton_jax.estimators.masks import handing_on, if_valid
from rltriton_jax.estimators.window import Window
from rltriton_jax.scan.recurrence import START, Read


class VTraceOutput(NamedTuple):
    """What the V-trace functions for actor-critics return, each [T]."""

    errors: jax.Array
    pg_advantage: jax.Array
    q_estimate: jax.Array


def _check(**sequences: Any) -> None:
    """All are sequences [T] of one length."""
    (first, shape), *rest = [(name, jnp.shape(x)) for name, x in sequences.items()]
    for name, other in [(first, shape), *rest]:
        if len(other) != 1:
            raise ValueError(f"{name} has shape {other}; pass one sequence, of shape (T,), and batch with jax.vmap.")
        if other != shape:
            raise ValueError(f"{name} has shape {other}, but {first} has shape {shape}; give them one length.")


def _check_values(values: Any, r_t: Any) -> None:
    if jnp.shape(values) != (r_t.shape[0] + 1,):
        raise ValueError(
            f"values has shape {jnp.shape(values)}, but r_t has shape {r_t.shape}; give values one step more, "
            f"{(r_t.shape[0] + 1,)}."
        )


def _check_hyperparameters(r_t: Any, **hyperparameters: Any) -> None:
    """Each is a scalar, or one number a step."""
    for name, x in hyperparameters.items():
        if jnp.shape(x) not in ((), (1,), r_t.shape):
            raise ValueError(
                f"{name} has shape {jnp.shape(x)}, but r_t has shape {r_t.shape}; pass a scalar or that shape."
            )


def _check_actions(action_values: dict[str, Any], actions: dict[str, Any]) -> None:
    """Arrays [K, A], and integers [K]."""
    (first, shape), *_ = [(name, jnp.shape(x)) for name, x in action_values.items()]
    for name, x in action_values.items():
        if len(jnp.shape(x)) != 2 or jnp.shape(x) != shape:
            raise ValueError(
                f"{name} has shape {jnp.shape(x)}, and {first} has shape {shape}; give both the shape (K, A)."
            )
    for name, x in actions.items():
        if not jnp.issubdtype(jnp.result_type(x), jnp.integer):
            raise TypeError(f"{name} has dtype {jnp.result_type(x)}; pass the indices of actions, {name}.astype(int).")


def _dtype(*arguments: Any) -> Any:
    """What rlax's arithmetic on the arguments gives, also where promotion is strict."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*arguments)


def _padding() -> np.ndarray:
    """Of JAX's default float dtype, which has a say in the two functions of rlax that pad with it."""
    return np.zeros(0, _dtype(float))


def _wide(*arguments: Any) -> list[jax.Array]:
    """The arguments in the dtype of the arithmetic: float32, or float64 if one of them is."""
    dtype = _dtype(jnp.float32, *arguments)
    return [jnp.asarray(x, dtype) for x in arguments]


def _hyperparameter(window: Window, name: str, value: Any) -> Read:
    """A hyperparameter of any sign; arrays of it have a say in the result's dtype, as in rlax."""
    read = window.coefficient(name, value, signed=True)
    window.data.append(window.operands[name])
    return read


def _stopped(stop: Any, x: jax.Array) -> jax.Array:
    return jax.lax.select(stop, jax.lax.stop_gradient(x), x)


def _stopped_target(stop: Any, errors: jax.Array, values: Any) -> jax.Array:
    """The errors, whose targets (errors + values) are stopped. What is added is 0, so that nothing is rounded."""
    values = jnp.asarray(values, errors.dtype)
    return jax.lax.select(stop, jax.lax.stop_gradient(errors + values) - values, errors)


class _LambdaReads(NamedTuple):
    reward: Any
    next_value: Any
    discount: Any
    lambda_: Any
    last: Any


def _lambda_coefficients(s):
    bootstrap = jnp.where(s.last, 1.0, 1.0 - s.lambda_)
    u = s.reward + s.discount * bootstrap * s.next_value
    return jnp.where(s.last, 0.0, s.discount * s.lambda_), u


@of_arrays()
def lambda_returns(
    r_t: jax.Array, discount_t: jax.Array, v_t: jax.Array, lambda_: Any = 1.0, stop_target_gradients: bool = False
) -> jax.Array:
    """G[t] = r + discount * ((1 - lambda_) * v + lambda_ * G[t+1]), with v at the end in place of G.

    Args:
      r_t, discount_t, v_t: [T]; rewards, discounts, and values of the states that were led to.
      lambda_: a scalar or [T].
      stop_target_gradients: stops the gradient of the result.

    Returns:
      G, [T].

    Gradients: of the result in every float argument, to any order; none if `stop_target_gradients`.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Sutton & Barto 2018, Reinforcement Learning: An Introduction, section 12.1.

    >>> import jax.numpy as jnp
    >>> print(lambda_returns(jnp.ones(2), jnp.full(2, 0.5), jnp.full(2, 4.0), lambda_=0.5))
    [2.75 3.  ]
    """
    _check(r_t=r_t, discount_t=discount_t, v_t=v_t)
    window = Window("r_t", r_t, 0)
    reads = _LambdaReads(
        reward=Read("r_t"),
        next_value=window.step("v_t", v_t),
        discount=window.step("discount_t", discount_t),
        lambda_=_hyperparameter(window, "lambda_", lambda_),
        last=START,
    )
    (returns,) = window.scan(reads, _lambda_coefficients, reverse=True, implementation=None)
    return _stopped(stop_target_gradients, returns)


@of_arrays()
def discounted_returns(
    r_t: jax.Array, discount_t: jax.Array, v_t: Any, stop_target_gradients: bool = False
) -> jax.Array:
    """G[t] = r + discount * G[t+1], with v at the end in place of G.

    Args:
      r_t, discount_t: [T].
      v_t: [T], of which the last entry counts, or a scalar.
      stop_target_gradients: stops the gradient of the result.

    Returns:
      G, [T].

    Gradients: of the result in every float argument, to any order; none if `stop_target_gradients`.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Sutton & Barto 2018, Reinforcement Learning: An Introduction, section 3.3.
    """
    v_t = jnp.broadcast_to(v_t, jnp.shape(r_t)) if jnp.ndim(v_t) == 0 else v_t
    return lambda_returns(r_t, discount_t, v_t, 1.0, stop_target_gradients)


@of_arrays("n")
def n_step_bootstrapped_returns(
    r_t: jax.Array,
    discount_t: jax.Array,
    v_t: jax.Array,
    n: int,
    lambda_t: Any = 1.0,
    stop_target_gradients: bool = False,
) -> jax.Array:
    """The return of n rewards, then v: G = r + discount * ((1 - lambda) * v + lambda * G[t+1]), iterated n times.

    Windows that reach beyond the end take v there, all of them if n is T or more. The n steps of every window
    are one scan, over [n, T].

    Args:
      r_t, discount_t, v_t: [T].
      n: how many steps, 1 or more.
      lambda_t: a scalar or [T].
      stop_target_gradients: stops the gradient of the result.

    Returns:
      The return from each step, [T].

    Gradients: of the result in every float argument, to any order; none if `stop_target_gradients`.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Sutton & Barto 2018, Reinforcement Learning: An Introduction, section 7.1.
    """
    _check(r_t=r_t, discount_t=discount_t, v_t=v_t)
    _check_hyperparameters(r_t, lambda_t=lambda_t)
    n = index("n", n)
    if n < 1:
        raise ValueError(f"n is {n}; a return has 1 step or more.")
    r_t, discount_t, v_t, lambda_t, _ = _wide(r_t, discount_t, v_t, lambda_t, _padding())
    steps = r_t.shape[0]
    n = max(1, min(n, steps))

    def windows(x, beyond):
        padded = jnp.concatenate([jnp.broadcast_to(x, steps), jnp.broadcast_to(beyond, n - 1).astype(x.dtype)])
        return jnp.stack([padded[i : i + steps] for i in range(n)])

    r, discount, v, lambda_ = (
        windows(x, beyond) for x, beyond in ((r_t, 0.0), (discount_t, 1.0), (v_t, v_t[-1]), (lambda_t, 1.0))
    )
    returns = linear_recurrence(discount * lambda_, r + discount * (1 - lambda_) * v, initial=v[-1], reverse=True)[0]
    return _stopped(stop_target_gradients, returns)


class _CorrectedReads(NamedTuple):
    reward: Any
    value: Any
    next_value: Any
    rho: Any
    next_rho: Any
    discount: Any
    lambda_: Any


def _corrected_coefficients(s):
    return s.discount * s.next_rho * s.lambda_, s.reward + s.discount * s.next_value - s.value


def _corrected_outputs(s, x, entering):
    return (s.rho * x,)


@of_arrays()
def importance_corrected_td_errors(
    r_t: jax.Array,
    discount_t: jax.Array,
    rho_tm1: jax.Array,
    lambda_: Any,
    values: jax.Array,
    stop_target_gradients: bool = False,
) -> jax.Array:
    """rho * x with x[t] = r + discount * v[t+1] - v[t] + discount * rho[t+1] * lambda_ * x[t+1].

    Args:
      r_t, discount_t, rho_tm1: [T].
      lambda_: a scalar or [T].
      values: [T + 1].
      stop_target_gradients: stops the gradient of the targets, errors + values.

    Returns:
      The corrected errors, [T].

    Gradients: of the errors in every float argument, to any order; with `stop_target_gradients` in the values alone.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Sutton et al. 2014, A new Q(lambda) with interim forward view and Monte Carlo equivalence,
      http://proceedings.mlr.press/v32/sutton14.html.
    """
    _check(r_t=r_t, discount_t=discount_t, rho_tm1=rho_tm1)
    _check_values(values, r_t)
    window = Window("r_t", r_t, 0)
    reads = _CorrectedReads(
        reward=Read("r_t"),
        value=window.step("values", values, extra_step=True),
        next_value=Read("values", 1),
        rho=window.step("rho_tm1", rho_tm1),
        next_rho=Read("rho_tm1", 1),
        discount=window.step("discount_t", discount_t),
        lambda_=_hyperparameter(window, "lambda_", lambda_),
    )
    window.data.append(_padding())
    (errors,) = window.scan(reads, _corrected_coefficients, _corrected_outputs, reverse=True, implementation=None)
    return _stopped_target(stop_target_gradients, errors, values[:-1])


class _GAEReads(NamedTuple):
    reward: Any
    value: Any
    next_value: Any
    discount: Any
    lambda_: Any


def _gae_coefficients(s):
    return s.discount * s.lambda_, s.reward + s.discount * s.next_value - s.value


@of_arrays()
def truncated_generalized_advantage_estimation(
    r_t: jax.Array, discount_t: jax.Array, lambda_: Any, values: jax.Array, stop_target_gradients: bool = False
) -> jax.Array:
    """A[t] = r + discount * v[t+1] - v[t] + discount * lambda_ * A[t+1].

    Args:
      r_t, discount_t: [T].
      lambda_: a scalar or [T].
      values: [T + 1].
      stop_target_gradients: stops the gradient of the result.

    Returns:
      The advantages A, [T].

    Gradients: of the result in every float argument, to any order; none if `stop_target_gradients`.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Schulman et al. 2016, High-Dimensional Continuous Control Using Generalized Advantage Estimation,
      https://arxiv.org/abs/1506.02438.

    >>> import jax.numpy as jnp
    >>> print(truncated_generalized_advantage_estimation(jnp.ones(2), jnp.full(2, 0.5), 1.0, jnp.zeros(3)))
    [1.5 1. ]
    """
    _check(r_t=r_t, discount_t=discount_t)
    _check_values(values, r_t)
    window = Window("r_t", r_t, 0)
    reads = _GAEReads(
        reward=Read("r_t"),
        value=window.step("values", values, extra_step=True),
        next_value=Read("values", 1),
        discount=window.step("discount_t", discount_t),
        lambda_=_hyperparameter(window, "lambda_", lambda_),
    )
    (advantages,) = window.scan(reads, _gae_coefficients, reverse=True, implementation=None)
    return _stopped(stop_target_gradients, advantages)


class _VTraceReads(NamedTuple):
    value: Any
    next_value: Any
    reward: Any
    discount: Any
    rho: Any
    lambda_: Any
    clip: Any
    valid: Any
    alpha: Any


def _vtrace_step(s, clipped_rho, c):
    return s.discount * c, clipped_rho * (s.reward + s.discount * s.next_value - s.value)


def _vtrace_coefficients(s):
    return _vtrace_step(s, jnp.minimum(s.clip, s.rho), jnp.minimum(1.0, s.rho) * s.lambda_)


def _leaky(alpha, clip, rho):
    return (1.0 - alpha) * rho + alpha * jnp.minimum(clip, rho)


def _leaky_coefficients(s):
    return _vtrace_step(s, _leaky(s.alpha, s.clip, s.rho), _leaky(s.alpha, 1.0, s.rho) * s.lambda_)


def _masked_coefficients(s):
    w, u = _vtrace_coefficients(s)
    return handing_on(s, w), if_valid(s, u)


def _masked_leaky_coefficients(s):
    w, u = _leaky_coefficients(s)
    return handing_on(s, w), if_valid(s, u)


def _vtrace_errors(v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, clip_rho_threshold, stop, sample_mask, **alpha):
    """V-trace, leaky where an alpha is given, by the name that its caller has for it; and the dtype of the result.

    The errors are in the dtype of the arithmetic.
    """
    mask = {} if sample_mask is None else {"sample_mask": sample_mask}
    _check(v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, rho_tm1=rho_tm1, **mask)
    window = Window("v_tm1", v_tm1, 0)
    leak = [_hyperparameter(window, name, value) for name, value in alpha.items()]
    reads = _VTraceReads(
        value=Read("v_tm1"),
        next_value=window.step("v_t", v_t),
        reward=window.step("r_t", r_t),
        discount=window.step("discount_t", discount_t),
        rho=window.step("rho_tm1", rho_tm1),
        lambda_=_hyperparameter(window, "lambda_", lambda_),
        clip=_hyperparameter(window, "clip_rho_threshold", clip_rho_threshold),
        valid=window.flag("sample_mask", sample_mask),
        alpha=leak[0] if leak else Read(),
    )
    dtype = window.dtype
    window.data.append(np.zeros(0, np.float32))
    if sample_mask is None:
        coefficients = _leaky_coefficients if leak else _vtrace_coefficients
    else:
        coefficients = _masked_leaky_coefficients if leak else _masked_coefficients
    (errors,) = window.scan(reads, coefficients, reverse=True, implementation=None)
    return _stopped_target(stop, errors, v_tm1), dtype


def _with_advantage(errors, clipped_rho, v_tm1, v_t, r_t, discount_t, lambda_, dtype, pg_dtype):
    """q = r + discount * (lambda * target[t+1] + (1 - lambda) * v_tm1[t+1]), with v_t at the end."""
    errors, clipped_rho, v_tm1, v_t, r_t, discount_t, lambda_ = _wide(
        errors, clipped_rho, v_tm1, v_t, r_t, discount_t, lambda_
    )
    ahead = (errors + v_tm1)[1:]
    lambda_ = jnp.broadcast_to(lambda_, r_t.shape)[:-1]
    q_bootstrap = jnp.concatenate([lambda_ * ahead + (1 - lambda_) * v_tm1[1:], v_t[-1:]])
    q_estimate = r_t + discount_t * q_bootstrap
    pg_advantage = clipped_rho * (q_estimate - v_tm1)
    return VTraceOutput(errors.astype(dtype), pg_advantage.astype(pg_dtype), q_estimate.astype(dtype))


@of_arrays()
def vtrace(
    v_tm1: jax.Array,
    v_t: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    rho_tm1: jax.Array,
    lambda_: Any = 1.0,
    clip_rho_threshold: Any = 1.0,
    stop_target_gradients: bool = True,
    sample_mask: jax.Array | None = None,
) -> jax.Array:
    """V-trace errors: x[t] = min(clip, rho) * (r + discount * v_t - v_tm1) + discount * lambda_ * min(1, rho) * x[t+1].

    Where `sample_mask` is False, x[t] = x[t+1].

    Args:
      v_tm1, v_t, r_t, discount_t, rho_tm1: [T]; the ratios are of target over behaviour policy.
      lambda_: a scalar or [T].
      clip_rho_threshold: clips the ratio that weighs an error.
      stop_target_gradients: stops the gradient of the targets, errors + v_tm1.
      sample_mask: flags [T]; True where a step is learned from.

    Returns:
      The errors x, [T].

    Gradients: of the errors in every float argument, to any order; with `stop_target_gradients`, the default, in the
      values alone.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Espeholt et al. 2018, IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
      Architectures, https://arxiv.org/abs/1802.01561.

    >>> import jax.numpy as jnp
    >>> half, zeros = jnp.full(2, 0.5), jnp.zeros(2)
    >>> print(vtrace(zeros, zeros, jnp.ones(2), jnp.ones(2), half))
    [0.75 0.5 ]
    """
    errors, dtype = _vtrace_errors(
        v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, clip_rho_threshold, stop_target_gradients, sample_mask
    )
    return errors.astype(dtype)


@of_arrays()
def leaky_vtrace(
    v_tm1: jax.Array,
    v_t: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    rho_tm1: jax.Array,
    alpha_: Any = 1.0,
    lambda_: Any = 1.0,
    clip_rho_threshold: Any = 1.0,
    stop_target_gradients: bool = True,
    sample_mask: jax.Array | None = None,
) -> jax.Array:
    """`vtrace` with each clipped ratio mixed with the plain one: (1 - alpha_) * rho + alpha_ * min(clip, rho).

    Args:
      v_tm1, v_t, r_t, discount_t, rho_tm1: [T]; the ratios are of target over behaviour policy.
      alpha_: a scalar; 1 is V-trace, 0 plain importance sampling.
      lambda_: a scalar or [T].
      clip_rho_threshold: clips the ratio that weighs an error.
      stop_target_gradients: stops the gradient of the targets, errors + v_tm1.
      sample_mask: flags [T]; True where a step is learned from.

    Returns:
      The errors, [T].

    Gradients: of the errors in every float argument, to any order; with `stop_target_gradients`, the default, in the
      values alone.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Zahavy et al. 2020, A Self-Tuning Actor-Critic Algorithm, https://arxiv.org/abs/2002.12928.
    """
    errors, dtype = _vtrace_errors(
        v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, clip_rho_threshold, stop_target_gradients, sample_mask,
        alpha_=alpha_,
    )  # fmt: skip
    return errors.astype(dtype)


@of_arrays()
def vtrace_td_error_and_advantage(
    v_tm1: jax.Array,
    v_t: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    rho_tm1: jax.Array,
    lambda_: Any = 1.0,
    clip_rho_threshold: Any = 1.0,
    clip_pg_rho_threshold: Any = 1.0,
    stop_target_gradients: bool = True,
    sample_mask: jax.Array | None = None,
) -> VTraceOutput:
    """`vtrace`, and the policy gradient's advantage min(clip_pg, rho) * (q - v_tm1) with the q of V-trace's targets.

    As in rlax, q at a step that is cut off by `lambda_` = 0 still reads v_tm1[t+1], of the next episode after a
    truncation; `rltriton_jax.vtrace` reads the true successor's value.

    Args:
      v_tm1, v_t, r_t, discount_t, rho_tm1: [T]; the ratios are of target over behaviour policy.
      lambda_: a scalar or [T].
      clip_rho_threshold: clips the ratio that weighs an error.
      clip_pg_rho_threshold: clips the ratio that weighs an advantage.
      stop_target_gradients: stops the gradient of the targets, errors + v_tm1.
      sample_mask: flags [T]; True where a step is learned from.

    Returns:
      `VTraceOutput(errors, pg_advantage, q_estimate)`, each [T].

    Gradients: of the errors in every float argument, to any order; with `stop_target_gradients`, the default, in the
      values alone. As in rlax the other two outputs are not stopped.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Espeholt et al. 2018, IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
      Architectures, https://arxiv.org/abs/1802.01561.
    """
    errors, dtype = _vtrace_errors(
        v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, clip_rho_threshold, stop_target_gradients, sample_mask
    )
    _check_hyperparameters(r_t, clip_pg_rho_threshold=clip_pg_rho_threshold)
    clipped_rho = jnp.minimum(*_wide(clip_pg_rho_threshold, rho_tm1))
    pg_dtype = _dtype(dtype, clip_pg_rho_threshold)
    return _with_advantage(errors, clipped_rho, v_tm1, v_t, r_t, discount_t, lambda_, dtype, pg_dtype)


@of_arrays()
def leaky_vtrace_td_error_and_advantage(
    v_tm1: jax.Array,
    v_t: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    rho_tm1: jax.Array,
    alpha: Any = 1.0,
    lambda_: Any = 1.0,
    clip_rho_threshold: Any = 1.0,
    clip_pg_rho_threshold: Any = 1.0,
    stop_target_gradients: bool = True,
    sample_mask: jax.Array | None = None,
) -> VTraceOutput:
    """`vtrace_td_error_and_advantage` with every clipped ratio mixed with the plain one, as in `leaky_vtrace`.

    Args:
      v_tm1, v_t, r_t, discount_t, rho_tm1: [T]; the ratios are of target over behaviour policy.
      alpha: a scalar; 1 is V-trace, 0 plain importance sampling.
      lambda_: a scalar or [T].
      clip_rho_threshold: clips the ratio that weighs an error.
      clip_pg_rho_threshold: clips the ratio that weighs an advantage.
      stop_target_gradients: stops the gradient of the targets, errors + v_tm1.
      sample_mask: flags [T]; True where a step is learned from.

    Returns:
      `VTraceOutput(errors, pg_advantage, q_estimate)`, each [T].

    Gradients: of the errors in every float argument, to any order; with `stop_target_gradients`, the default, in the
      values alone. As in rlax the other two outputs are not stopped.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Zahavy et al. 2020, A Self-Tuning Actor-Critic Algorithm, https://arxiv.org/abs/2002.12928.
    """
    errors, dtype = _vtrace_errors(
        v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, clip_rho_threshold, stop_target_gradients, sample_mask,
        alpha=alpha,
    )  # fmt: skip
    _check_hyperparameters(r_t, clip_pg_rho_threshold=clip_pg_rho_threshold)
    clipped_rho = _leaky(*_wide(alpha, clip_pg_rho_threshold, rho_tm1))
    pg_dtype = _dtype(dtype, clip_pg_rho_threshold)
    return _with_advantage(errors, clipped_rho, v_tm1, v_t, r_t, discount_t, lambda_, dtype, pg_dtype)


class _GeneralReads(NamedTuple):
    reward: Any
    q: Any
    v: Any
    discount: Any
    c: Any


def _general_coefficients(s):
    return s.discount * s.c, s.reward + s.discount * (s.v - s.c * s.q)


@of_arrays()
def general_off_policy_returns_from_q_and_v(
    q_t: jax.Array,
    v_t: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    c_t: jax.Array,
    stop_target_gradients: bool = False,
) -> jax.Array:
    """G[t] = r + discount * (v - c * q + c * G[t+1]), and r + discount * v at the last step.

    Args:
      q_t: [K - 1]; of the actions taken.
      v_t, r_t, discount_t: [K].
      c_t: [K - 1]; how much of each correction is handed on.
      stop_target_gradients: stops the gradient of the result.

    Returns:
      G, [K].

    Gradients: of the result in every float argument, to any order; none if `stop_target_gradients`.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Munos et al. 2016, Safe and Efficient Off-Policy Reinforcement Learning, https://arxiv.org/abs/1606.02647.
    """
    _check(r_t=r_t, v_t=v_t, discount_t=discount_t)
    _check(**{"r_t[:-1]": r_t[:-1]}, q_t=q_t, c_t=c_t)
    window = Window("r_t", r_t, 0)
    reads = _GeneralReads(
        reward=Read("r_t"),
        q=window.step("q_t", jnp.pad(q_t, (0, 1))),
        v=window.step("v_t", v_t),
        discount=window.step("discount_t", discount_t),
        c=window.step("c_t", jnp.pad(c_t, (0, 1))),
    )
    (returns,) = window.scan(reads, _general_coefficients, reverse=True, implementation=None)
    return _stopped(stop_target_gradients, returns)


def _of_action(x, actions):
    return jnp.take_along_axis(x, actions[:, None], axis=-1)[:, 0]


@of_arrays()
def general_off_policy_returns_from_action_values(
    q_t: jax.Array,
    a_t: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    c_t: jax.Array,
    pi_t: jax.Array,
    stop_target_gradients: bool = False,
) -> jax.Array:
    """`general_off_policy_returns_from_q_and_v` with v = E_pi q, and q of the actions taken.

    Args:
      q_t: [K, A].
      a_t: integers [K].
      r_t, discount_t, c_t: [K].
      pi_t: probabilities [K, A] of the target policy.
      stop_target_gradients: stops the gradient of the result.

    Returns:
      G, [K].

    Gradients: of the result in every float argument, to any order; none if `stop_target_gradients`.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Munos et al. 2016, Safe and Efficient Off-Policy Reinforcement Learning, https://arxiv.org/abs/1606.02647.
    """
    _check_actions({"q_t": q_t, "pi_t": pi_t}, {"a_t": a_t})
    _check(r_t=r_t, a_t=a_t, discount_t=discount_t, c_t=c_t, **{"q_t[:, 0]": q_t[:, 0]})
    dtype = _dtype(q_t, r_t, discount_t, c_t, pi_t)
    q_t, c_t, pi_t = _wide(q_t, c_t, pi_t)
    v_t = jnp.sum(pi_t * q_t, axis=-1)
    q_a_t = _of_action(q_t, a_t)[:-1]
    returns = general_off_policy_returns_from_q_and_v(q_a_t, v_t, r_t, discount_t, c_t[:-1], stop_target_gradients)
    return returns.astype(dtype)


@of_arrays()
def retrace(
    q_tm1: jax.Array,
    q_t: jax.Array,
    a_tm1: jax.Array,
    a_t: jax.Array,
    r_t: jax.Array,
    discount_t: jax.Array,
    pi_t: jax.Array,
    mu_t: jax.Array,
    lambda_: Any,
    eps: float = 1e-8,
    stop_target_gradients: bool = True,
) -> jax.Array:
    """Retrace errors: the general off-policy returns with c = lambda_ * min(1, pi / (mu + eps)), less q of a_tm1.

    Args:
      q_tm1, q_t: [K, A].
      a_tm1, a_t: integers [K].
      r_t, discount_t: [K].
      pi_t: probabilities [K, A] of the target policy.
      mu_t: probability [K] of `a_t` under the behaviour policy.
      lambda_: a scalar or [K].
      eps: added to `mu_t`.
      stop_target_gradients: stops the gradient of the targets.

    Returns:
      The errors, [K].

    Gradients: in every float argument, to any order; with `stop_target_gradients`, the default, in `q_tm1` alone.

    Raises:
      ValueError: for arguments that are not sequences of one length.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Munos et al. 2016, Safe and Efficient Off-Policy Reinforcement Learning, https://arxiv.org/abs/1606.02647.
    """
    _check_actions({"q_t": q_t, "q_tm1": q_tm1, "pi_t": pi_t}, {"a_tm1": a_tm1, "a_t": a_t})
    _check(r_t=r_t, a_tm1=a_tm1, a_t=a_t, discount_t=discount_t, mu_t=mu_t, **{"q_t[:, 0]": q_t[:, 0]})
    _check_hyperparameters(r_t, lambda_=lambda_, eps=eps)
    dtype = _dtype(q_tm1, q_t, r_t, discount_t, pi_t, mu_t, lambda_, eps)
    arguments = _wide(q_tm1, q_t, r_t, discount_t, pi_t, mu_t, lambda_, eps)
    q_tm1, q_t, r_t, discount_t, pi_t, mu_t, lambda_, added = arguments
    c_t = jnp.minimum(1.0, _of_action(pi_t, a_t) / (mu_t + added)) * lambda_
    targets = general_off_policy_returns_from_action_values(q_t, a_t, r_t, discount_t, c_t, pi_t)
    return (_stopped(stop_target_gradients, targets) - _of_action(q_tm1, a_tm1)).astype(dtype)
