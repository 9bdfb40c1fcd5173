"""Credit assignment for reinforcement learning in JAX, at the speed of memory.

Seven estimators, one associative scan. Where things are:

- `estimators/`: one module an estimator, with what a step reads, its algebra, its function and its object.
- `estimators/arguments.py`: what a user passes, made arrays or refused by name.
- `estimators/window.py`: the checks and broadcasts that every estimator begins with.
- `scan/recurrence.py`: what a recurrence is; `scan/algebra.py`: which Python it may be written in.
- `scan/primitive.py`: the one JAX primitive; `scan/derivatives.py`: its derivatives.
- `scan/lowering.py`: what the primitive becomes on each platform.
- `scan/plain/`: the recurrence in plain JAX; `scan/triton/`: as a kernel; `scan/sharding/`: on several devices.
- `scan/jax_internals.py`: everything of JAX that is private or differs between versions.
- `boundaries.py`: from what environments and buffers give to the arguments of the estimators.
- `compat/`: functions with the signatures of rlax's, Brax's and tunix's.
- `train/`, `bench/`, `doctor.py`: what `python -m rltriton_jax` runs; `commands.py`: what these commands share.
"""

from rltriton_jax import _interrupt, boundaries, compat  # noqa: F401  interrupts are dealt with before JAX is imported
from rltriton_jax.estimators.discounted_returns import DiscountedReturns, discounted_returns
from rltriton_jax.estimators.eligibility_traces import EligibilityTraces, eligibility_traces
from rltriton_jax.estimators.episodic_prefix_sum import EpisodicPrefixSum, episodic_prefix_sum
from rltriton_jax.estimators.estimate import Estimate, let_export_serialize
from rltriton_jax.estimators.gae import GAE, gae
from rltriton_jax.estimators.lambda_returns import LambdaReturns, lambda_returns
from rltriton_jax.estimators.linear_recurrence import linear_recurrence
from rltriton_jax.estimators.retrace import Retrace, retrace
from rltriton_jax.estimators.vtrace import VTrace, vtrace
from rltriton_jax.scan.implementation import default_implementation, lowering_for, set_default_implementation

let_export_serialize()

__version__ = "0.2.0"

__all__ = [
    "GAE",
    "DiscountedReturns",
    "EligibilityTraces",
    "EpisodicPrefixSum",
    "Estimate",
    "LambdaReturns",
    "Retrace",
    "VTrace",
    "boundaries",
    "compat",
    "default_implementation",
    "discounted_returns",
    "eligibility_traces",
    "episodic_prefix_sum",
    "gae",
    "lambda_returns",
    "linear_recurrence",
    "lowering_for",
    "retrace",
    "set_default_implementation",
    "vtrace",
]
