"""Every error that the kit raises, under one base class.

A bad row is data (`records.Rejection`), never an exception that ends a run; these are for what a row can't
cause. `exit_code` is what the command ends with: 1 where the run can be resumed as it is, 2 where the input must
change first. This module does not know where an error is raised, nor how it is printed.
"""


class RawTokensError(Exception):
    """Base of all errors of the kit; the message names the value, what was expected and the next step."""

    exit_code = 2


class InputError(RawTokensError, ValueError):
    """A file, a setting or a parameter is not what the kit can use; nothing was written."""


class TokenizerError(InputError):
    """The tokenizer can't be loaded, has no chat template, or has no thinking markers that the kit knows."""


class ServerError(RawTokensError):
    """No server answers, or the server contradicts the run (another vocabulary, a context that is too short)."""

    exit_code = 1


class RunStopped(RawTokensError):
    """The run stopped in a state that can be resumed: storage, a refused key, no server, NaN weights."""

    exit_code = 1


class LockedError(RawTokensError):
    """Another live process writes here; the message names it."""

    exit_code = 1


class ResumeError(InputError):
    """The run on disk was made with other settings that change ids; the message lists the differences."""


def one_line(error: BaseException) -> str:
    """The first line of an error's message, at most 300 characters; its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
