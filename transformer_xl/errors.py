"""The one error that is a user's to mend, not ours."""


class UserError(Exception):
  """A mistake in a command, a config or a file; the text names the fix.

  `main` prints the text as one line and exits with status 2; every other
  exception is a bug and keeps its traceback.
  """


class DivergenceError(Exception):
  """The loss is no number any more; the text says what to resume from."""
