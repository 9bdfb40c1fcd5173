"""The bare recurrence."""

from typing import Any

from rltriton_jax.estimators.arguments import boolean, shape
from rltriton_jax.estimators.window import Window, over_leaves
from rltriton_jax.scan.recurrence import LinearReads, Read, linear_coefficients


@over_leaves("inputs", options=("reverse",))
def linear_recurrence(
    weights: Any,
    inputs: Any,
    *,
    initial: Any = None,
    reverse: bool = False,
    time_axis: int = 0,
    implementation: str | None = None,
) -> Any:
    """The first-order linear recurrence that every estimator here is made of.

        forward (default):  x[t] = inputs[t] + weights[t] * x[t-1],   x[-1] = initial
        reverse=True:       x[t] = inputs[t] + weights[t] * x[t+1],   x[T]  = initial

    A weight of 0 cuts: what lies beyond it, NaN and Inf included, reaches neither the output nor a gradient.

    Args:
      weights: a scalar, or an array that broadcasts against [T, *batch]: [N], [T, 1], [T, N].
      inputs: [T, *batch], or a pytree of such arrays.
      initial: the state before the first step, [*batch]; 0 if left out.
      reverse: True to scan from the last step to the first.
      time_axis: the axis of time.
      implementation: None (chosen by platform when lowering), "triton", "chunked_scan", "associative_scan", "scan" or
        "interpret".

    Returns:
      x, of the shape of `inputs` in the promoted dtype of `weights`, `inputs` and `initial`. Python scalars and 0-d
      weights take the dtype of the rest.

    Gradients: to any order, in every float argument.

    Raises:
      ValueError: for shapes that do not fit.
      TypeError: for a `reverse` that is no bool, and dtypes other than float32, bfloat16, float16 and float64.

    References:
      Blelloch 1990, Prefix Sums and Their Applications, https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf.

    >>> import jax.numpy as jnp, rltriton_jax as rtj
    >>> print(rtj.linear_recurrence(0.5, jnp.ones(3)))
    [1.   1.5  1.75]
    """
    boolean("reverse", reverse)
    window = Window("inputs", inputs, time_axis)
    reads = LinearReads(input=Read("inputs"), weight=window.coefficient("weights", weights, signed=True))
    if shape("weights", weights):
        window.data.append(window.operands["weights"])
    initial = window.one_step("initial", initial)
    return window.scan(
        reads, linear_coefficients, reverse=bool(reverse), initial=initial, implementation=implementation
    )[0]
