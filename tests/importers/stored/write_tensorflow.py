"""Writes the checkpoints in this folder with TensorFlow's own writer.

    python -m tests.importers.stored.write_tensorflow

They have the names and shapes of the published checkpoints in small
(docs/specification.md, section 21.3), optimizer included, and weights that are
a function of the names. Beside each lie `corpus-info.json` and a `cache.pkl` as
Python 2 pickled it. Run from the repository's root, with TensorFlow; the other
tests do not need it.
"""

import io
import json
import pathlib
import pickle
import sys
import types

import numpy as np

from tests.parity import weights

FOLDER = pathlib.Path(__file__).parent
STEP = 7
NUM_LAYERS, MODEL_DIM, NUM_HEADS, HEAD_DIM, FF_DIM = 2, 8, 2, 4, 12


def main() -> None:
  bytes_ = [str(value) for value in (32, 101, 116, 97, 105, 110, 111, 114, 200)]
  write("enwik8", _character_shapes(len(bytes_)), bytes_, cutoffs=())
  letters = ["_", *"etaoinsr"]
  write("text8", _character_shapes(len(letters)), letters, cutoffs=())
  words = ["<eos>", "the", ",", "<unk>", "caf\u00e9"]
  words += [f"w{number}" for number in range(23 - len(words))]
  write("wt103", _word_shapes((6, 8, 9), own=(0,)), words, cutoffs=(6, 14))
  words = ["the", ",", "<S>", "<UNK>"]
  words += [f"w{number}" for number in range(23 - len(words))]
  shapes = _word_shapes((6, 8, 9), own=(1, 2))
  del shapes["adaptive_embed/cutoff_0/proj_W"]  # --proj_same_dim=False
  write("lm1b", shapes, words, cutoffs=(6, 14))


def write(name, shapes, symbols, *, cutoffs) -> None:
  """The files of the two published folders, `model` and `data`, in one."""
  import tensorflow

  tf = tensorflow.compat.v1
  folder = FOLDER / f"tf_{name}"
  folder.mkdir(exist_ok=True)
  with tf.Graph().as_default(), tf.Session() as session:
    for tensor, shape in shapes.items():
      full = f"transformer/{tensor}"
      values = weights.draw(STEP, full, shape)
      tf.get_variable(full, initializer=values)
      for slot in ("Adam", "Adam_1"):
        tf.get_variable(f"{full}/{slot}", initializer=np.zeros(shape, "f4"))
    for power in ("beta1_power", "beta2_power"):
      tf.get_variable(power, initializer=np.float32(0.5))
    tf.get_variable("global_step", initializer=np.int64(STEP))
    session.run(tf.global_variables_initializer())
    tf.train.Saver(save_relative_paths=True).save(
      session,
      str(folder / "model.ckpt"),
      global_step=STEP,
      write_meta_graph=False,
    )
  info = {
    "vocab_size": len(symbols),
    "cutoffs": [0, *cutoffs, len(symbols)] if cutoffs else [],
    "dataset": name,
  }
  (folder / "corpus-info.json").write_text(json.dumps(info))
  (folder / "cache.pkl").write_bytes(_pickle_corpus(name, symbols))


def _character_shapes(size: int) -> dict[str, tuple[int, ...]]:
  return {
    "r_w_bias": (NUM_HEADS, HEAD_DIM),
    "r_r_bias": (NUM_HEADS, HEAD_DIM),
    "adaptive_embed/lookup_table": (size, MODEL_DIM),
    "adaptive_softmax/bias": (size,),
    **_layer_shapes(),
  }


def _word_shapes(sizes, *, own) -> dict[str, tuple[int, ...]]:
  """Three clusters with div_val 2; `own` have a projection in the softmax."""
  shapes = {
    "r_w_bias": (NUM_LAYERS, NUM_HEADS, HEAD_DIM),
    "r_r_bias": (NUM_LAYERS, NUM_HEADS, HEAD_DIM),
    "adaptive_softmax/cutoff_0/cluster_W": (len(sizes) - 1, MODEL_DIM),
    "adaptive_softmax/cutoff_0/cluster_b": (len(sizes) - 1,),
    **_layer_shapes(),
  }
  for index, size in enumerate(sizes):
    width = MODEL_DIM // 2**index
    embed, softmax = (
      f"adaptive_{part}/cutoff_{index}" for part in ("embed", "softmax")
    )
    shapes[f"{embed}/lookup_table"] = (size, width)
    shapes[f"{embed}/proj_W"] = (width, MODEL_DIM)
    shapes[f"{softmax}/b"] = (size,)
    if index in own:
      shapes[f"{softmax}/proj"] = (width, MODEL_DIM)
  return shapes


def _layer_shapes() -> dict[str, tuple[int, ...]]:
  width = NUM_HEADS * HEAD_DIM
  shapes = {
    "rel_attn/qkv/kernel": (MODEL_DIM, 3 * width),
    "rel_attn/r/kernel": (MODEL_DIM, width),
    "rel_attn/o/kernel": (width, MODEL_DIM),
    "rel_attn/LayerNorm/gamma": (MODEL_DIM,),
    "rel_attn/LayerNorm/beta": (MODEL_DIM,),
    "ff/layer_1/kernel": (MODEL_DIM, FF_DIM),
    "ff/layer_1/bias": (FF_DIM,),
    "ff/layer_2/kernel": (FF_DIM, MODEL_DIM),
    "ff/layer_2/bias": (MODEL_DIM,),
    "ff/LayerNorm/gamma": (MODEL_DIM,),
    "ff/LayerNorm/beta": (MODEL_DIM,),
  }
  return {
    f"layer_{layer}/{name}": shape
    for layer in range(NUM_LAYERS)
    for name, shape in shapes.items()
  }


class _Python2Pickler(pickle._Pickler):
  """Writes text as Python 2 did: as bytes that do not say they are text."""

  dispatch = pickle._Pickler.dispatch.copy()

  def save_text(self, value):
    data = value if isinstance(value, bytes) else value.encode("utf-8")
    self.write(pickle.SHORT_BINSTRING + bytes([len(data)]) + data)
    self.memoize(value)

  dispatch[str] = dispatch[bytes] = save_text


def _pickle_corpus(name: str, symbols: list[str]) -> bytes:
  """A Corpus with a Vocab, under the module names of the original."""
  modules = {"data_utils": "Corpus", "vocabulary": "Vocab"}
  for module, kind in modules.items():
    sys.modules[module] = types.ModuleType(module)
    setattr(sys.modules[module], kind, type(kind, (), {"__module__": module}))
  vocab = sys.modules["vocabulary"].Vocab()
  vocab.__dict__.update(
    idx2sym=symbols,
    sym2idx={symbol: index for index, symbol in enumerate(symbols)},
    lower_case=False,
    special=[],
    delimiter=None,
  )
  corpus = sys.modules["data_utils"].Corpus()
  corpus.__dict__.update(vocab=vocab, dataset=name, test=np.arange(5))
  stream = io.BytesIO()
  _Python2Pickler(stream, protocol=2).dump(corpus)
  return stream.getvalue()


if __name__ == "__main__":
  main()
