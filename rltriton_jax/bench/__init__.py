"""Timing the estimators: what `python -m rltriton_jax bench` runs."""
