"""Where episodes begin and end: from what environments and buffers give to the arguments of the estimators.

- `dones_from_starts`: flags that mark the first step of an episode (CleanRL, SB3, SBX, PufferLib, PureJaxRL's recurrent
  learner) become flags that mark the last.
- `next_step_autoreset`: what Gymnasium's vector environments give in their default mode, NEXT_STEP.
- `segments_from_lengths`: sequences packed one behind the other, given by their lengths.
- `deinterleave`: a buffer in which the steps of several trajectories alternate.

Two conventions need no function. Where an environment resets within the step that ended the episode (Gymnasium's
SAME_STEP mode, Gymnax, Brax), V of the observation in its `info` is `final_values`. A probability that the episode goes
on (DreamerV3) is no flag and belongs in the discount: `gamma=gamma * continuation`.

Time is the first axis, and [*batch] any number of axes behind it. Arguments are arrays of NumPy or JAX, traced ones
included, and results are JAX's.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rltriton_jax.estimators.arguments import index, integers, of_arrays, of_jax
from rltriton_jax.estimators.window import Window, refuse_other_than_flags, visible


@of_arrays()
def dones_from_starts(starts: Any, next_start: Any) -> jax.Array:
    """Flags of the last step of each episode, from flags of the first.

        done[t] = starts[t+1]        inside the window
        done[T-1] = next_start

    CleanRL, SB3, SBX, PufferLib and PureJaxRL's recurrent learner store with step t whether its observation begins an
    episode. Taken for `terminated` as they are, such flags cut each episode one step late.

    Args:
      starts: flags [T, *batch] holding 0 or 1; 1 at the first step of an episode.
      next_start: the flag of the step after the window, [*batch] or a scalar; CleanRL's `next_done`.

    Returns:
      Flags [T, *batch] in the dtype of `starts`, to pass as `done`, or as `terminated` where no episode is cut short:
      `starts` does not tell the two kinds of end apart.

    Raises:
      ValueError: for shapes that do not fit, and flags that can be seen to hold anything but 0 and 1.
      TypeError: for what is no array of numbers.

    >>> import numpy as np
    >>> print(dones_from_starts(np.array([1, 0, 0, 1, 0]), next_start=1))
    [0 0 1 0 1]
    """
    window = Window("starts", starts, 0)
    window.flag("starts", starts)
    flags = window.operands["starts"]
    beyond = _flags_of_one_step(window, "next_start", next_start).astype(flags.dtype)
    # Cut only once they are together, so that no steps stay no steps.
    return jnp.concatenate([flags, beyond])[1:]


@of_arrays()
def next_step_autoreset(values: Any, terminated: Any, truncated: Any, previous_done: Any) -> dict[str, jax.Array]:
    """The arguments of an estimator, from a rollout in NEXT_STEP, the default mode of Gymnasium's vector environments.

    In that mode the observation after the last step of an episode is the final one, so `values[t+1]` is V of it. The
    row after that step is a reset row: the environment ignores the action and only resets, and the row's reward means
    nothing. `valid` leaves it out:

        rtj.gae(rewards, **next_step_autoreset(values, terminated, truncated, previous_done), gamma=0.99)

    A loss should leave it out too, and so should whatever else is computed per step.

    Args:
      values: V of the observations, [T + 1, *batch]; the last is V(s_T).
      terminated: flags [T, *batch] holding 0 or 1, as the environment gave them.
      truncated: flags [T, *batch] holding 0 or 1, as the environment gave them.
      previous_done: `terminated | truncated` of the last row before this window, [*batch] or a scalar, as row 0 may be
        a reset row; 0 right after `reset`.

    Returns:
      A dict of
      `values`, `terminated`, `truncated`: as they were given. Gymnasium sets no flag in a reset row; one that is set
        ends nothing, as the episode has ended in the row before, and makes the next row a reset row, too.
      `final_values`: [T, *batch], `values[t+1]` at step t; estimators read it at truncated steps.
      `valid`: bool [T, *batch], False in reset rows.

    Gradients: flow from `values` and `final_values` to `values`.

    Raises:
      ValueError: for shapes that do not fit, and flags that can be seen to hold anything but 0 and 1.
      TypeError: for what is no array of numbers.

    >>> import numpy as np
    >>> arguments = next_step_autoreset(
    ...     np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([0, 0, 0, 0]), np.array([0, 1, 0, 0]), previous_done=0
    ... )
    >>> print(arguments["final_values"], arguments["valid"])
    [2. 3. 4. 5.] [ True  True False  True]
    """
    window = Window("terminated", terminated, 0)
    window.flag("terminated", terminated)
    window.flag("truncated", truncated)
    previous = _flags_of_one_step(window, "previous_done", previous_done)
    values = of_jax(values)
    shape = (window.steps + 1, *window.batch)
    if values.shape != shape:
        raise ValueError(
            f"values has shape {values.shape}, but terminated has shape {window.shape}; give values the shape {shape}, "
            "one step more, the last being V(s_T): jnp.concatenate([values, last_value[None]])."
        )
    terminated, truncated = window.operands["terminated"], window.operands["truncated"]
    done = terminated.astype(bool) | truncated.astype(bool)
    return {
        "values": values,
        "terminated": terminated,
        "truncated": truncated,
        "final_values": values[1:],
        "valid": ~jnp.concatenate([previous.astype(bool), done])[:-1],
    }


@of_arrays("lengths", "steps")
def segments_from_lengths(lengths: Any, steps: int) -> tuple[jax.Array, jax.Array]:
    """Which segment each step belongs to, where segments lie one behind the other, with padding behind the last.

    Args:
      lengths: integers [K, *batch], the lengths of the segments in their order; a length may be 0.
      steps: T, the number of steps in a row; a Python int, static under `jax.jit`.

    Returns:
      segment_ids: int32 [T, *batch], the number of the step's segment, 0 to K - 1; K in the padding, which so is a
        segment of its own.
      valid: bool [T, *batch], False in the padding.

    Raises:
      ValueError: for an array without an axis of segments, a negative `steps` and, where they can be seen, lengths that
        are negative or have a sum beyond `steps`. Where they are traced, what lies beyond `steps` is left out.
      TypeError: for `lengths` that are not integers, and `steps` that are not a Python integer.

    >>> import numpy as np
    >>> segment_ids, valid = segments_from_lengths(np.array([2, 3]), steps=7)
    >>> print(segment_ids, valid)
    [0 0 1 1 1 2 2] [ True  True  True  True  True False False]
    """
    steps = index("steps", steps)
    if steps < 0:
        raise ValueError(f"steps is {steps}; pass an int that is at least 0.")
    given = integers("lengths", lengths, narrower=f"lengths with a sum of at most steps, {steps}")
    lengths = of_jax(given)
    if not lengths.ndim:
        raise ValueError("lengths has shape (); it needs an axis of segments: pass an array [K, *batch].")
    _refuse_misfits(visible(given), steps)

    def segments_before(ends):
        return jnp.searchsorted(ends, jnp.arange(steps, dtype=jnp.int32), side="right").astype(jnp.int32)

    for _ in lengths.shape[1:]:
        segments_before = jax.vmap(segments_before, -1, -1)
    # Lengths of 8 bits may have a sum that needs more.
    segment_ids = segments_before(jnp.cumsum(lengths, axis=0, dtype=jnp.int32))
    return segment_ids, segment_ids < lengths.shape[0]


@of_arrays("ids")
def deinterleave(ids: Any) -> tuple[jax.Array, jax.Array]:
    """The order in which each trajectory's steps come together, for a buffer in which trajectories alternate.

    Steps of the same id keep their order. For ids [T], x [T, ...] becomes x[order], whose `segment_ids` are ids[order],
    and a result y becomes y[inverse], in the order of the buffer. For ids [T, *batch] these are
    `jnp.take_along_axis(x, order, 0)` and `jnp.take_along_axis(y, inverse, 0)`.

    Behind the last step of a trajectory comes another trajectory, so V of that step's successor is not in x[order]:
    where the trajectory goes on beyond the buffer, pass `next_values`, in this order like everything else.

    Args:
      ids: integers [T, *batch], the trajectory of each step, such as the environment that sent it.

    Returns:
      order: integers [T, *batch], a permutation of the steps.
      inverse: integers [T, *batch], the permutation that undoes it.

    Raises:
      ValueError: for an array without a time axis, and integers that JAX's cannot hold.
      TypeError: for `ids` that are not integers.

    >>> import numpy as np
    >>> ids = np.array([7, 3, 7, 3])
    >>> order, inverse = deinterleave(ids)
    >>> print(order, ids[order], ids[order][inverse])
    [1 3 0 2] [3 3 7 7] [7 3 7 3]
    """
    ids = of_jax(integers("ids", ids, narrower="np.unique(ids, return_inverse=True)[1].reshape(ids.shape)"))
    if not ids.ndim:
        raise ValueError("ids has shape (); it needs a time axis: pass an array [T, *batch].")
    order = jnp.argsort(ids, axis=0, stable=True)
    return order, jnp.argsort(order, axis=0)


def _flags_of_one_step(window: Window, name: str, value) -> jax.Array:
    """Flags of the step before or after the window, [*batch] or a scalar, as [1, *batch]."""
    window.one_step(name, value)
    refuse_other_than_flags(name, value)
    return jnp.broadcast_to(window.operands[name], (1, *window.batch))


def _refuse_misfits(lengths: np.ndarray | None, steps: int):
    """Lengths, where they can be seen, that are negative or too many steps in all."""
    if lengths is None or not lengths.size:
        return
    if lengths.min() < 0:
        raise ValueError(f"lengths (shape {lengths.shape}) holds {lengths.min()}; pass lengths that are at least 0.")
    total = lengths.sum(axis=0, dtype=np.int64).max()
    if total > steps:
        raise ValueError(
            f"lengths (shape {lengths.shape}) has the sum {total}, but steps is {steps}; pass steps={total} or more, "
            "or shorten the last segments."
        )
