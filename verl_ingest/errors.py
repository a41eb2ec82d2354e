"""The kit's errors: each message says what is wrong, where, and what to do next."""


class KitError(Exception):
    """Something the user can mend. The command line prints it as one sentence and exits with 1."""


class SettingsError(KitError):
    """A setting is unknown, missing or has a value that can't be used."""


class InputError(KitError):
    """A log file or folder can't be read."""


class StoreError(KitError):
    """Elasticsearch can't be reached, or refuses what was asked."""


class NotFound(KitError):
    """The run, step or metric asked for has no records."""
