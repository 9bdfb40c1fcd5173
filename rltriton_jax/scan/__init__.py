"""The scan: one primitive, its rules, and what runs it on each platform."""
