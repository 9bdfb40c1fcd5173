"""Credit assignment for reinforcement learning in JAX, at the speed of memory.

Seven estimators, one associative scan. Where things are:

- `estimators/`: one module an estimator; its function, its object and its algebra.
- `estimators/window.py`: the checks and broadcasts that every estimator begins with.
- `scan/recurrence.py`: what a recurrence is; `scan/primitive.py`: the JAX primitive and its rules.
- `scan/lax_scan.py`: the recurrence in plain JAX; `scan/kernel.py`, `scan/launch.py`: in Triton.
- `scan/devices.py`, `scan/time_shards.py`: on several devices.
- `compat/`: functions with the signatures of rlax's and Brax's.
- `train/`, `bench/`, `doctor.py`: what `python -m rltriton_jax` runs.
"""

from rltriton_jax import compat
from rltriton_jax.estimators.discounted_returns import DiscountedReturns, discounted_returns
from rltriton_jax.estimators.eligibility_traces import EligibilityTraces, eligibility_traces
from rltriton_jax.estimators.episodic_prefix_sum import EpisodicPrefixSum, episodic_prefix_sum
from rltriton_jax.estimators.estimate import Estimate
from rltriton_jax.estimators.gae import GAE, gae
from rltriton_jax.estimators.lambda_returns import LambdaReturns, lambda_returns
from rltriton_jax.estimators.linear_recurrence import linear_recurrence
from rltriton_jax.estimators.retrace import Retrace, retrace
from rltriton_jax.estimators.vtrace import VTrace, vtrace
from rltriton_jax.scan.implementation import default_implementation, lowering_for, set_default_implementation

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
