"""The recurrence as one Triton kernel. Only `program`, `tiles` and `plan` can be imported without Triton."""
