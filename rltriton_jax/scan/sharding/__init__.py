"""The recurrence on several devices."""
