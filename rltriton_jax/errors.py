"""What the commands raise."""


class CommandError(Exception):
    """What a person did wrong, in one line."""
