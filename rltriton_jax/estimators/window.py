"""What every estimator does first: check how the arguments fit together and say how the scan reads them."""

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rltriton_jax.estimators import arguments
from rltriton_jax.estimators.arguments import FLOATS, numbers, of_jax
from rltriton_jax.scan.plain.products import scaled
from rltriton_jax.scan.plain.scan import compute_dtype
from rltriton_jax.scan.primitive import affine_scan
from rltriton_jax.scan.recurrence import START, Read, Recurrence, state_alone

F = TypeVar("F", bound=Callable[..., Any])


def visible(array) -> np.ndarray | None:
    """The values of `array` where looking at them costs no transfer and needs no trace: else None."""
    if isinstance(array, Tracer):
        return None
    if isinstance(array, jax.Array):
        on_cpu = all(device.platform == "cpu" for device in array.devices())
        if not on_cpu or not array.is_fully_addressable:
            return None
    return np.asarray(array)


def refuse_other_than_flags(name: str, given):
    """An error where `given`, which `numbers` returned, can be seen to hold anything but 0 and 1."""
    values = None if getattr(given, "dtype", None) == np.bool_ else visible(given)
    if values is not None and not np.all(valid := (values == 0) | (values == 1)):
        raise ValueError(
            f"{name} has shape {values.shape} and holds {values[~valid].flat[0]}; its flags must be 0 or 1. "
            "A probability that the episode goes on belongs in the discount: gamma=gamma * probability."
        )


def _at_most_the_largest(x, dtype):
    """x in this dtype, with its largest number in place of infinity; without an operation where x can be seen."""
    numpy = jnp if visible(x) is None else np
    return jnp.asarray(numpy.minimum(numpy.asarray(x, dtype), jnp.finfo(dtype).max))


class Window:
    """The per-step arrays of one call: [T, *batch] with time on `time_axis`.

    Each method checks an argument, keeps it as an operand and returns the `Read` by which the algebra sees it.
    A flag or a step beyond the window that is left out (None) reads as nothing.
    """

    def __init__(self, name: str, array, time_axis: int, *, steps_like=None, like_name: str = "", edge: str = ""):
        """`array` spans all steps. `steps_like`, if given, has the shape [T, *batch], which `array` may extend.

        `edge` names the argument with one entry per batch element, which is mistaken for flags if given by position.
        """
        self.operands: dict[str, jax.Array] = {}
        self.carried: dict[str, Recurrence] = {}
        self.skips = False
        self._counted: Any = True
        self.data: list[Any] = []
        self.finite: list[str] = []
        self.name = name
        array = arguments.as_array(name, array)
        self.shape = array.shape
        self.step_shape = self.shape if steps_like is None else arguments.shape(like_name, steps_like)
        self._edge = f" {edge} is keyword-only, {edge}=..., with one entry per batch element." if edge else ""
        if steps_like is not None and self.step_shape != self.shape[: max(1, len(self.step_shape))]:
            raise ValueError(
                f"{like_name} has shape {self.step_shape}, but {self.name} has shape {self.shape}; {like_name} "
                f"holds one flag per step, so its shape must be the leading axes of {name}'s.{self._edge}"
            )
        ndim = len(self.step_shape)
        if not ndim:
            raise ValueError(f"{self.name} has shape {self.shape}; it needs a time axis: pass an array [T, *batch].")
        time_axis = arguments.index("time_axis", time_axis)
        if not -ndim <= time_axis < ndim:
            raise ValueError(
                f"time_axis is {time_axis}, but {self.name} has shape {self.step_shape}; use {-ndim} to {ndim - 1}."
            )
        self.axis = time_axis % ndim
        self.steps = self.step_shape[self.axis]
        self.batch = self.step_shape[: self.axis] + self.step_shape[self.axis + 1 :]
        self.trailing = len(self.shape) - ndim
        self.operands[name] = array
        self.data.append(array)

    @classmethod
    def of_features(cls, name: str, array, time_axis: int, **per_step) -> "Window":
        """That of an array which may have trailing axes that the flags and ids `per_step` lack; those may be None."""
        given = {key: value for key, value in per_step.items() if value is not None}
        like = next(iter(given), "done")
        return cls(name, array, time_axis, steps_like=given.get(like), like_name=like, edge="initial")

    def _numbers(self, name, value):
        if value is None:
            raise ValueError(
                f"{name} is None, and {self.name} has shape {self.shape}; {name} is required, so pass an array."
            )
        return numbers(name, value)

    def _array(self, name, value):
        return of_jax(self._numbers(name, value))

    def step(self, name: str, array, *, shift: int = 0, beyond: str | None = None, extra_step: bool = False) -> Read:
        """An array [T, *batch]; with `extra_step` it may hold T + 1 steps."""
        array = self._array(name, array)
        shapes = [self.step_shape]
        if extra_step:
            shapes.append((*self.step_shape[: self.axis], self.steps + 1, *self.step_shape[self.axis + 1 :]))
        if array.shape not in shapes:
            raise ValueError(
                f"{name} has shape {array.shape}, but {self.name} has shape {self.step_shape}; "
                f"give {name} the shape {' or '.join(map(str, shapes))}, one entry per step on axis {self.axis}."
            )
        self._keep(name, array)
        return Read(name, shift, beyond)

    def flag(self, name: str, array, *, shift: int = 0) -> Read:
        """A flag per step: bool, integer or float, holding 0 or 1. Traced ones are checked under `checkify`."""
        if array is None:
            return Read(kind="flag")
        given = numbers(name, array, flag=True)
        array = of_jax(given)
        if array.shape != self.step_shape:
            raise ValueError(
                f"{name} has shape {array.shape}, but {self.name} has shape {self.step_shape}; {name} "
                f"holds one flag per step, so give it that shape.{self._edge if array.shape == self.batch else ''}"
            )
        refuse_other_than_flags(name, given)
        self.operands.setdefault(name, array.reshape(array.shape + (1,) * self.trailing))
        return Read(name, shift, kind="flag")

    def mask(self, valid, segment_ids, *, reverse: bool, on_truncation: str = "bootstrap") -> dict[str, Read]:
        """The reads `valid`, `segment`, `entering_segment` and `at_start`, or none where neither argument is given.

        The second segment is that of the step before in scan order, and counts where there is one, but `at_start`.
        """
        if valid is None and segment_ids is None:
            return {}
        for name, array in (("valid", valid), ("segment_ids", segment_ids)):
            if array is not None and on_truncation == "mask":
                raise ValueError(
                    f'on_truncation is "mask", and {name} is given (shape {arguments.shape(name, array)}): what a '
                    "truncated step hands on to the valid step before it would be undefined. Pass final_values (shape "
                    f'{self.step_shape}) or next_values with on_truncation="bootstrap".'
                )
        self.skips = valid is not None
        if valid is None:
            self.operands["valid"] = jnp.ones((1,) * len(self.shape), bool)
        else:
            self.flag("valid", valid)
            seen = visible(numbers("valid", valid, flag=True))
            self._counted = False if seen is None else seen != 0
        reads = {"valid": Read("valid", kind="flag"), "segment": Read(), "entering_segment": Read(), "at_start": START}
        if segment_ids is not None:
            given = of_jax(
                arguments.integers(
                    "segment_ids",
                    segment_ids,
                    "np.unique(segment_ids, return_inverse=True)[1].reshape(segment_ids.shape)",
                )
            )
            if given.shape != self.step_shape:
                raise ValueError(
                    f"segment_ids has shape {given.shape}, but {self.name} has shape {self.step_shape}; segment_ids "
                    "holds the id of each step's sequence, so give it that shape."
                )
            self.operands["segment_ids"] = given.reshape(given.shape + (1,) * self.trailing)
            kind = "int64" if given.dtype.itemsize == 8 else "int32"
            reads["segment"] = Read("segment_ids", kind=kind)
            reads["entering_segment"] = Read("segment_ids", 1 if reverse else -1, kind=kind)
        return reads

    def one_step(self, name: str, array) -> str | None:
        """One entry per batch element, [*batch] and any trailing axes, or a scalar; returns its operand name."""
        if array is None:
            return None
        array = self._array(name, array)
        full = self.batch + self.shape[len(self.step_shape) :]
        if array.shape not in ((), full):
            raise ValueError(
                f"{name} has shape {array.shape}, but {self.name} has shape {self.shape} with time on axis "
                f"{self.axis}; give {name} the shape {full}, one entry per batch element."
            )
        with jax.debug_nans(False):
            one = jnp.expand_dims(array, self.axis) if array.shape else array.reshape((1,) * len(self.shape))
        self._keep(name, one)
        return name

    def scale(self, name: str, *by: str) -> None:
        """Multiplies an operand of one step by coefficients that are the same at all steps; one of 0 wins."""
        dtype = compute_dtype(self.dtype)
        factor = functools.reduce(operator.mul, (self.operands[key].astype(dtype) for key in by))
        one = self.operands[name].astype(dtype)
        shape = jnp.broadcast_shapes(one.shape, factor.shape)
        self.operands[name] = scaled(jnp.broadcast_to(one, shape), factor)

    def coefficient(
        self, name: str, value, *, shift: int = 0, signed: bool = False, clip: bool = False, weight: bool = False
    ) -> Read:
        """A hyperparameter: a scalar, an array over the batch, or one with a time axis that broadcasts per step.

        It is at least 0 unless it may be `signed`, and finite unless it is a `clip` (or may be signed). A clip of a
        `weight` that is infinite counts as the largest number, so that weights are finite.
        """
        given = self._numbers(name, value)
        value = of_jax(given)
        ndim, shape = len(self.step_shape), value.shape
        if len(shape) == ndim:
            target = self.step_shape
        else:
            shape, target = (1,) * (ndim - 1 - len(shape)) + shape, self.batch
        if len(shape) != len(target) or any(a not in (1, b) for a, b in zip(shape, target, strict=True)):
            per_step = (*(1,) * self.axis, self.steps, *(1,) * (ndim - 1 - self.axis))
            of_batch = f", per batch element {self.batch}, per step {per_step}, or per both {self.step_shape}"
            raise ValueError(
                f"{name} has shape {value.shape}, but {self.name} has shape {self.step_shape}; {name} may be "
                f"a scalar{of_batch if self.batch else f' or per step {per_step}'}."
            )
        values = None if signed else visible(given)
        fits = np.True_ if values is None else (values >= 0) & (np.isfinite(values) | clip)
        if values is not None and np.any(wrong := self._counts(value) & ~fits):
            found = np.broadcast_to(values, wrong.shape)[wrong].flat[0]
            raise ValueError(
                f"{name} (shape {value.shape}) holds {found}; it weighs the steps of {self.name} "
                f"(shape {self.step_shape}), so pass {'' if clip else 'finite '}numbers that are at least 0."
            )
        if weight:
            self.finite.append(name)
        if value.ndim != ndim:
            shape = (*shape[: self.axis], 1, *shape[self.axis :])
        self.operands[name] = value.reshape(shape + (1,) * self.trailing)
        return Read(name, 0 if shape[self.axis] == 1 else shift)

    def _counts(self, coefficient):
        """Where a coefficient must be a number that weighs; one of a step that is not valid is not read."""
        return self._counted if len(coefficient.shape) == len(self.step_shape) else True

    def successor(
        self,
        values,
        bootstrap_value,
        next_values,
        final_values,
        truncated,
        *,
        on_truncation: str = "bootstrap",
        values_required: bool = True,
    ) -> dict[str, Read]:
        """The read `value`, and those of which the algebra's `successor_value` makes V'.

        They are `next_value`, V at the next step, `final_value`, V at the true final observation, and `at_final`, where
        that counts.
        """
        arguments.choice("on_truncation", on_truncation, "bootstrap", "mask")
        if next_values is not None:
            for name, other in (("bootstrap_value", bootstrap_value), ("final_values", final_values)):
                if other is not None:
                    raise ValueError(
                        f"next_values (shape {arguments.shape('next_values', next_values)}) and {name} (shape "
                        f"{arguments.shape(name, other)}) both give successor values; next_values[t] is V of the true "
                        f"successor at every step, so leave {name} out."
                    )
        elif truncated is not None and final_values is None and on_truncation == "bootstrap":
            self.flag("truncated", truncated)
            raise ValueError(
                f"truncated (shape {self.step_shape}) needs V of the true final observation. Where the "
                "environment resets within the step (Gymnasium's SAME_STEP mode, Gymnax, Brax), values[t+1] belongs to "
                f"the next episode: pass final_values (shape {self.step_shape}, read only at truncated steps). Where "
                "it resets one step later (Gymnasium's default, NEXT_STEP), values[t+1] is that V: pass next_values "
                "(V of the true successor at every step), concatenate([values[1:], bootstrap_value[None]]), instead "
                "of bootstrap_value, or all that rtj.boundaries.next_step_autoreset makes."
            )
        if values is None and not values_required:
            if next_values is None:
                raise ValueError(
                    "values and next_values are None, so nothing gives the values of the successors; pass next_values, "
                    f"of the shape {self.step_shape} of {self.name}, or values with bootstrap_value."
                )
            return {"value": Read(), "next_value": self.step("next_values", next_values), **self.at_final(None, None)}
        value = self.step("values", values, extra_step=True)
        extra_step = self.operands["values"].shape != self.step_shape
        if extra_step:
            for name, other in (("bootstrap_value", bootstrap_value), ("next_values", next_values)):
                if other is not None:
                    raise ValueError(
                        f"values has shape {self.operands['values'].shape}, one step more than {self.name} with shape "
                        f"{self.step_shape}: its last step is V(s_T) already, so leave {name} (shape "
                        f"{arguments.shape(name, other)}) out, or pass values without its last step."
                    )
        if next_values is not None:
            return {"value": value, "next_value": self.step("next_values", next_values), **self.at_final(None, None)}
        if bootstrap_value is None and not extra_step:
            raise ValueError(
                f"nothing gives the value of the state after the last step: {self.name} and values have shape "
                f"{self.step_shape}. Pass bootstrap_value = V(s_T), of shape {self.batch} (0 if there is none), values "
                f"with one step more, or next_values of shape {self.step_shape}."
            )
        following = Read(value.operand, 1, self.one_step("bootstrap_value", bootstrap_value))
        return {"value": value, "next_value": following, **self.at_final(final_values, truncated)}

    def at_final(self, final_values, truncated) -> dict[str, Read]:
        """The reads `final_value`, V at the true final observation, and `at_final`, where it counts."""
        if final_values is None:
            return {"final_value": Read(), "at_final": Read(kind="flag")}
        if truncated is None:
            raise ValueError(
                f"final_values (shape {arguments.shape('final_values', final_values)}) is read only at truncated "
                f"steps, but truncated is None; pass truncated, flags of the shape {self.step_shape} of {self.name}, "
                "or leave final_values out."
            )
        return {
            "final_value": self.step("final_values", final_values),
            "at_final": self.flag("truncated", truncated),
        }

    def expectation(self, q_name: str, q, probs_name: str, probs) -> Read:
        """sum_a probs * q over the trailing axis of both, in the scan's dtype; probabilities of 0 exclude actions."""
        q, probs = self._array(q_name, q), self._array(probs_name, probs)
        for name, array in ((q_name, q), (probs_name, probs)):
            if array.shape[:-1] != self.step_shape or array.shape != q.shape:
                raise ValueError(
                    f"{name} has shape {array.shape}, but {self.name} has shape {self.step_shape} and {q_name} has "
                    f"shape {q.shape}; give {q_name} and {probs_name} the shape {(*self.step_shape, 'A')}, with one "
                    "entry per action on the last axis."
                )
        self._keep(q_name, q)
        self._keep(probs_name, probs)
        return Read(q_name, weights=probs_name)

    def per_step(self, name: str) -> bool:
        """Does the coefficient `name` change along time?"""
        return self.operands[name].shape[self.axis] != 1

    def _keep(self, name, array):
        self.operands[name] = array
        self.data.append(array)

    @property
    def dtype(self):
        """The promoted dtype of the data; hyperparameters and flags have no say."""
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*self.data)
        if dtype.name not in FLOATS:
            raise TypeError(
                f"{self.name} and the arrays beside it have dtype {dtype}; pass one of {', '.join(FLOATS)}, "
                f"for instance {self.name}.astype(jnp.float32)."
            )
        return dtype

    def scan(
        self,
        reads: Any,
        coefficients: Callable[[Any], tuple[Any, Any]],
        outputs: Callable[[Any, Any, Any], tuple[Any, ...]] = state_alone,
        *,
        reverse: bool,
        implementation: str | None,
        initial: str | None = None,
        finite_weights: bool = False,
    ) -> tuple[jax.Array, ...]:
        """The outputs of the recurrence on the operands kept so far; `Recurrence` says what the arguments are."""
        recurrence = self._recurrence(
            reads, coefficients, outputs, reverse=reverse, initial=initial, finite_weights=finite_weights
        )
        named = {name: self.operands[name] for name in recurrence.operands}
        for name in named.keys() & set(self.finite):
            named[name] = _at_most_the_largest(named[name], compute_dtype(self.dtype))
        operands = tuple(named.values())
        return affine_scan(recurrence, operands, time_axis=self.axis, dtype=self.dtype, implementation=implementation)

    def carry(self, name: str, reads: Any, coefficients, outputs, *, reverse: bool, finite_weights: bool) -> Read:
        """The one output of another recurrence as an operand of those that come: it is computed beside them."""
        self.carried[name] = self._recurrence(
            reads, coefficients, outputs, reverse=reverse, finite_weights=finite_weights
        )
        return Read(name)

    def _recurrence(self, reads, coefficients, outputs, **options) -> Recurrence:
        needed = {self.name, options.get("initial")}
        needed |= {name for r in reads for name in (r.operand, r.beyond, r.weights)}
        carried = tuple((name, inner) for name, inner in self.carried.items() if name in needed)
        needed |= {name for _, inner in carried for name in inner.operands}
        names = tuple(name for name in self.operands if name in needed)
        return Recurrence(names, reads, coefficients, outputs, carried=carried, **options)


def over_leaves(main: str, options: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Makes a function of arrays one of pytrees: it is called once for each leaf of the argument `main`.

    Every other array argument is one array for all leaves, or a pytree of the same structure. The arguments named in
    `options`, `time_axis` and `implementation` are passed as they are. Results come back in that structure.
    """
    options = (*options, "time_axis", "implementation")

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def mapped(*args, **kwargs):
            bound = arguments.bind(function.__name__, signature, args, kwargs)
            fixed = {k: arguments.static(k, v) for k, v in bound.items() if k in options}
            arrays = {k: v for k, v in bound.items() if k not in options}
            _refuse_sequence(main, arrays[main])
            paths, structure = jax.tree_util.tree_flatten_with_path(arrays[main])
            if not paths:
                raise ValueError(f"{main} is {arrays[main]!r}, which holds no array; pass an array [T, *batch].")
            if jax.tree_util.treedef_is_leaf(structure):
                return function(**arrays, **fixed)
            columns = {k: _column(k, v, main, structure) for k, v in arrays.items()}
            results = []
            for i, (path, _) in enumerate(paths):
                try:
                    results.append(function(**{k: column[i] for k, column in columns.items()}, **fixed))
                except Exception as error:
                    _say_where(error, f"at {main}{jax.tree_util.keystr(path)}")
                    raise
            return jax.tree.transpose(structure, None, jax.tree.unflatten(structure, results))

        return cast(F, mapped)

    return decorate


def _say_where(error, where):
    """In the message where it is one of this library's; other exceptions are made of more than their text."""
    if type(error) in (TypeError, ValueError):
        error.args = (f"{where}: {error}",)
    else:
        error.add_note(where)


def _refuse_sequence(main, value):
    """A list or tuple is T steps that are not stacked, or a pytree of agents: nobody can tell which."""
    if isinstance(value, arguments.ITERABLES):
        numbers(main, value)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        first = f", the first of shape {value[0].shape}" if value and hasattr(value[0], "shape") else ""
        raise TypeError(
            f"{main} is a {type(value).__name__} of {len(value)} entries{first}; stack its steps into one array "
            f"[T, *batch] with jnp.stack({main}), or name its entries in a dict or NamedTuple if they are agents."
        )


def _column(name, value, main, structure):
    if isinstance(value, arguments.ITERABLES):
        return [value] * structure.num_leaves
    treedef = jax.tree.structure(value)
    if value is None or jax.tree_util.treedef_is_leaf(treedef):
        return [value] * structure.num_leaves
    if treedef == structure:
        return jax.tree.leaves(value)
    raise ValueError(
        f"{name} has the structure {treedef}, but {main} has {structure}; "
        f"pass {name} as one array for all leaves, or as a pytree like {main}."
    )
