"""What the commands raise."""


class CommandError(Exception):
    """A mistake of the person who ran the command, told in one line."""
