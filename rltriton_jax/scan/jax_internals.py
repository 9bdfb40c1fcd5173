"""Everything of JAX that is private or differs between its versions, each with the reason for its use."""

from collections.abc import Callable

import jax
from jax._src import checkify as _checkify
from jax.experimental import checkify
from jax.extend.core import Primitive


def check_under_checkify(primitive: Primitive, check: Callable[..., None]) -> None:
    """Under `checkify.checkify`, and only there, each call of `primitive` runs `check(*operands, **params)` too.

    `check` calls `checkify.debug_check`. Called beside the primitive instead, that would leave its condition and an
    effect, which `jax.export` cannot serialise, in every traced program. There is no public way to add such a rule.
    """

    def rule(*args, **params):
        at = next(i for i, a in enumerate(args) if isinstance(a, checkify.Error))  # JAX 0.12 passes a context first
        error, enabled, *operands = args[at:]
        jaxpr = jax.make_jaxpr(lambda *xs: check(*xs, **params))(*operands)
        error, _ = _checkify.checkify_jaxpr(*args[:at], jaxpr, enabled, error, *operands)
        return error, primitive.bind(*operands, **params)

    _checkify.error_checks[primitive] = rule
