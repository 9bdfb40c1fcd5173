"""The scan: one primitive, its rules, and what runs it on each platform."""

from rltriton_jax.scan import derivatives as derivatives
