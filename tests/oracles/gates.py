"""Gates of recurrent mixers."""

import numpy as np


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def silu(x):
  return x * sigmoid(x)
