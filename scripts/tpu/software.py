"""Installs the commit that is checked out here on every worker of a slice."""

import os
import subprocess
import tempfile

from scripts.tpu import queued_resource
from scripts.tpu import workers
from transformer_xl import errors

FOLDER = "transformer-xl"  # In the home folder of each worker.
_TRIES = 6
_BUNDLE = "transformer-xl.bundle"
# Cloud TPU images have Python 3.10; uv brings its own. The mark comes last, so
# an installation that broke off starts again.
_INSTALL = """
set -e
cd
if [ "$(cat {folder}/.installed 2>/dev/null)" = {commit} ]; then exit; fi
export PATH="$HOME/.local/bin:$PATH"
command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
rm -rf {folder}
git clone --quiet {bundle} {folder}
cd {folder}
git -c advice.detachedHead=false checkout --quiet {commit}
uv venv --quiet --python 3.12
uv pip install --quiet --constraint requirements.lock --editable '.[tpu,gcs]'
echo {commit} > .installed
"""


def commit() -> str:
  """The commit to install.

  Raises:
    UserError: this is no checkout.
  """
  if changed := _git("status", "--porcelain", "--untracked-files=no"):
    queued_resource.log(
      f"{len(changed.splitlines())} changed files are not committed and will "
      "not be installed."
    )
  return _git("rev-parse", "HEAD")


def install(slice_: queued_resource.Slice, commit: str) -> None:
  """Installs a commit with the locked versions, unless it is there.

  Raises:
    GoneError: there are no machines.
    RefusedError: it failed, or the workers were not reached, in several tries.
  """

  def copy_and_install():
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, _BUNDLE)
      _git("bundle", "create", "--quiet", path, "HEAD")
      workers.copy(slice_, path, _BUNDLE)
    values = {"folder": FOLDER, "bundle": _BUNDLE, "commit": commit}
    workers.run(slice_, _INSTALL.format(**values), seconds=3600)
    queued_resource.log(f"{slice_.name}: {commit[:12]} is installed.")

  queued_resource.patiently(
    slice_, "not installed yet", copy_and_install, tries=_TRIES
  )


def _git(*words: str) -> str:
  try:
    finished = subprocess.run(
      ["git", *words], capture_output=True, check=True, text=True
    )
  except (OSError, subprocess.CalledProcessError) as error:
    said = (getattr(error, "stderr", "") or str(error)).strip()
    raise errors.UserError(
      f"cannot read the commit to install ({said}): run this in the checkout."
    ) from None
  return finished.stdout.strip()
