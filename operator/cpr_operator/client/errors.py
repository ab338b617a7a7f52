"""What a request of a user ends in: one sentence, with the remedy.

ClientError
├── NoObjectError      there is no object of this name
├── UnavailableError   the API server cannot answer now; the same request may succeed later
├── TookTooLongError   what was waited for did not come in time
└── CommandError       a command in a pod failed
"""


class ClientError(Exception):
    """What cannot be done, and what to do about it."""


class NoObjectError(ClientError):
    """The cluster knows CPRJobs, and there is none of this name."""


class UnavailableError(ClientError):
    """The API server cannot be reached, or answers that it cannot serve now."""


class TookTooLongError(ClientError):
    """What was waited for did not come in time."""


class CommandError(ClientError):
    """A command in a pod that failed; `errors` is the end of its standard error."""

    def __init__(self, code: int, errors: str) -> None:
        super().__init__(f"the command ended with exit code {code}: {errors}")
        self.code = code
        self.errors = errors
