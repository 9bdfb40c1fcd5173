"""Functions with the signatures, defaults and results of other libraries': adopting this one is a changed import.

from rltriton_jax.compat import rlax                          # instead of: import rlax
from rltriton_jax.compat.brax import compute_gae              # instead of: brax.training.agents.ppo.losses.compute_gae
from rltriton_jax.compat.tunix import compute_gae_advantages  # instead of: tunix.rl.algo_core.compute_gae_advantages

`brax.keep_final_observation` is a wrapper for Brax's environments, which lack it.
"""

from rltriton_jax.compat import brax, rlax, tunix

__all__ = ["brax", "rlax", "tunix"]
