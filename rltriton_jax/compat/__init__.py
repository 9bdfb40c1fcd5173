"""Functions with the signatures, defaults and results of other libraries': adopting this one is a changed import.

from rltriton_jax.compat import rlax                      # instead of: import rlax
from rltriton_jax.compat.brax import compute_gae          # instead of: brax.training.agents.ppo.losses.compute_gae

`brax.keep_final_observation` is a wrapper for Brax's environments, which lack it.
"""

from rltriton_jax.compat import brax, rlax

__all__ = ["brax", "rlax"]
