"""The recurrence in plain JAX: what every platform without a kernel runs, and what derivatives are taken of."""
