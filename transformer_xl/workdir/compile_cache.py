"""The folder of compiled programs, which later commands read."""

import os

from absl import logging

from transformer_xl import storage


def use() -> None:
  """Lets JAX keep compiled programs in `folder`, also those of small models.

  By itself it keeps only those that took a second to compile, and every command
  would compile the others again. Nothing changes where somebody has chosen a
  folder, or none, by JAX_COMPILATION_CACHE_DIR or in Python.
  """
  import jax  # Late, since it takes long.

  # An attribute of the configuration, which JAX's types do not declare.
  is_chosen = jax.config.values["jax_compilation_cache_dir"] is not None
  if is_chosen or "JAX_COMPILATION_CACHE_DIR" in os.environ:
    return
  jax.config.update("jax_compilation_cache_dir", folder())
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def folder() -> str | None:
  """Where compiled programs are kept; None if no folder is safe.

  JAX runs what it reads there. So the folder belongs to this user alone, and is
  never beside a workdir, which may come from somebody else.
  """
  path = storage.cache() / "compiled"
  try:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
  except OSError as error:
    logging.warning("Compiled programs are not kept: %s.", error)
    return None
  if status.st_uid != os.getuid() or status.st_mode & 0o022:
    logging.warning(
      "Compiled programs are not kept, since other users can write to %s; "
      "make it yours alone (chmod 700), or set XDG_CACHE_HOME.",
      path,
    )
    return None
  return str(path)
