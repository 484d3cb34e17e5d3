"""Writes checkpoints of parameters alone, which all modes but train read."""

from collections.abc import Sequence

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.typing import ArrayLike

from transformer_xl import shapes
from transformer_xl.workdir import checkpoint_items

_CHUNK_BYTES = 16 << 20  # Orbax compresses so much of an array at once.


def save(workdir: str, params: shapes.PyTree, *, step: int) -> None:
  """Writes a checkpoint."""
  item = ocp.args.StandardSave(params)
  with checkpoint_items.open_manager(workdir) as manager:
    manager.save(step, args=ocp.args.Composite(params=item))


def save_one_by_one(workdir: str, params: shapes.PyTree, *, step: int) -> None:
  """As `save`, with memory for few arrays at a time.

  Args:
    workdir: of the run.
    params: what NumPy makes an array of, with `shape`, each made when it is
      written.
    step: of the checkpoint.
  """
  kinds = {type(leaf) for leaf in jax.tree.leaves(params)}
  registry = ocp.type_handlers.create_type_handler_registry(
    # There are none, but without a handler for them Orbax warns.
    (jax.Array, ocp.type_handlers.get_type_handler(jax.Array)),
    *((kind, _OneByOne()) for kind in kinds),
  )
  handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
  in_chunks = ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES)
  item = ocp.args.PyTreeSave(params, jax.tree.map(lambda _: in_chunks, params))
  args = ocp.args.Composite(params=item)
  with checkpoint_items.open_manager(workdir, params=handler) as manager:
    manager.save(step, args=args)


class _OneByOne(ocp.type_handlers.NumpyHandler):
  """Makes an array when the one before is written."""

  async def serialize(
    self,
    values: Sequence[ArrayLike],
    infos: Sequence[ocp.type_handlers.ParamInfo],
    args: Sequence[ocp.type_handlers.SaveArgs] | None = None,
  ) -> Sequence[ocp.future.Future]:
    """Returns what writes them, in the background."""
    if args is None:
      args = [ocp.SaveArgs()] * len(values)
    write = super().serialize

    async def write_all() -> None:
      for value, info, arg in zip(values, infos, args, strict=True):
        for written in await write([np.asarray(value)], [info], [arg]):
          written.result()

    return [ocp.future.CommitFutureAwaitingContractedSignals(write_all())]
