"""The command that prepares texts, on a disk that is full."""

import errno
import os
import runpy

from transformer_xl.data_prep import preparation


def prepare(**options):
  raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


if __name__ == "__main__":
  preparation.prepare = prepare
  runpy.run_module("data_prep.main", run_name="__main__", alter_sys=True)
