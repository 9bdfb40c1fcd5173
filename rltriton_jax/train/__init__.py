"""PPO on Gymnax environments, with advantages from this library: what `python -m rltriton_jax train` runs."""
