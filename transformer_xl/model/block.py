"""A layer: norm, mixer, residual, feed-forward. The only place with the wiring.

`Turn` reads a segment with one turn of the pattern of layers, which has a
single layer unless `config.model.layers` names several: six layers of
('lstm', 'attention') are two places and three turns. The parameters of each
place of the pattern are under its number, with all turns stacked in front:
`layers/0/attention/query`.
"""

import flax.linen as nn
import jax

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.model import auxiliary_predictions
from transformer_xl.model import feed_forward as feed_forward_lib
from transformer_xl.model import norm
from transformer_xl.model import pattern
from transformer_xl.model import residual
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.model.mixers import mixer as mixer_lib

REMAT_POLICIES = {
  "full": None,
  "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
  "attention": jax.checkpoint_policies.save_only_these_names(
    "attention_output", "feed_forward_hidden"
  ),
}


class Layer(nn.Module):
  """One layer.

  Attributes:
    config: of the model.
    settings: how it reads.
    place: of the pattern.
    streams: use the streaming form of the mixer, if it has one.
  """

  config: schema.ModelConfig
  settings: mixer_lib.Settings
  place: pattern.Place
  streams: bool = False

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    state: mixer_lib.LayerState,
    shared: mixer_lib.Shared,
  ) -> tuple[shapes.Hidden, mixer_lib.Kept]:
    """Reads a segment.

    Args:
      hidden: output of the layer below.
      state: what the layer remembers.
      shared: what all layers share.

    Returns:
      The output, and what the mixer keeps.
    """
    config = self.config
    hidden = mesh_lib.shard_lanes(hidden)
    kind = self.place.mixer
    if self.streams and kind.streaming is not None:
      kind = kind.streaming.form
    mix = kind(config, self.settings, name=self.place.name)
    mixer_norm = norm.Norm(config, name="mixer_norm")
    feed_forward = feed_forward_lib.FeedForward(config, name="feed_forward")
    feed_forward_norm = norm.Norm(config, name="feed_forward_norm")
    join_mixer = residual.of(config, "mixer_gate")
    join_feed_forward = residual.of(config, "feed_forward_gate")
    positions = encodings.of(config).layer_positions(
      self, shared.first_position, hidden.shape[1]
    )
    if positions is not None:
      hidden = hidden + positions[None]

    lanes = shared.dropout_lanes
    if config.pre_norm:
      mixed, kept = mix(hidden, state, shared, mixer_norm)
      inner = join_mixer(hidden, mixed, lanes)
      fed = feed_forward(feed_forward_norm(inner), lanes)
      hidden = join_feed_forward(inner, fed, lanes)
    else:
      mixed, kept = mix(hidden, state, shared, mixer_lib.identity)
      inner = mixer_norm(join_mixer(hidden, mixed, lanes))
      fed = feed_forward(inner, lanes)
      hidden = feed_forward_norm(join_feed_forward(inner, fed, lanes))
    state = kind.with_output(kept.state, hidden, shared)
    return hidden, kept._replace(state=state)


class Turn(nn.Module):
  """The layers of one turn of the pattern; the body of the scan over turns.

  Attributes:
    config: of the model.
    settings: how it reads.
    places: of the pattern, lowest first.
  """

  config: schema.ModelConfig
  settings: mixer_lib.Settings
  places: tuple[pattern.Place, ...]

  @nn.compact
  def __call__(
    self,
    hidden: shapes.Hidden,
    states: tuple[mixer_lib.LayerState, ...],
    shared: mixer_lib.Shared,
  ) -> tuple[shapes.Hidden, tuple[mixer_lib.Kept, ...]]:
    """Reads a segment.

    Args:
      hidden: output of the layers below.
      states: what each of the layers remembers.
      shared: what all layers share.

    Returns:
      The output, and what each layer's mixer keeps.
    """
    if not self.settings.trains_memory:
      # No gradient reaches the memory of earlier segments: SG in the paper.
      states = jax.lax.stop_gradient(states)
    keeps_outputs = self.settings.returns_losses
    keeps_outputs &= auxiliary_predictions.layers_predict(self.config)
    kept_by_layer = []
    for index, place in enumerate(self.places):
      layer = Layer(self.config, self.settings, place, name=str(index))
      if index == 0:
        # Flax derives random keys from the names of the modules around them.
        # The first place takes those of the turn, so that a model whose layers
        # are all alike draws its numbers as if there were no places.
        assert self.scope is not None
        assert layer.scope is not None
        layer.scope.rngs = self.scope.rngs
      hidden, kept = layer(hidden, states[index], shared)
      if keeps_outputs:
        kept = kept._replace(output=hidden)
      kept_by_layer.append(kept)
    return hidden, tuple(kept_by_layer)


def scanned(
  config: schema.ModelConfig, settings: mixer_lib.Settings
) -> nn.Module:
  """All layers of the network: a scan of `Turn` over the pattern's turns.

  Parameters and states are stacked, with the turns in front. By default the
  loop is unrolled. A real one copies, in each iteration, a slice out of every
  stack, and what the backward pass needs into another stack.
  """
  places = pattern.places(config)
  num_turns = config.num_layers // len(places)
  unroll = min(config.scan_unroll or num_turns, num_turns)
  body = Turn
  if config.remat != "none":  # The backward pass computes some values again.
    body = nn.remat(
      Turn,
      policy=REMAT_POLICIES[config.remat],
      prevent_cse=unroll >= num_turns,  # In a real loop nothing is merged.
    )
  scan = nn.scan(
    body,
    variable_axes={"params": 0},  # Each turn has parameters of its own.
    split_rngs={"params": True, "dropout": True},
    in_axes=(0, nn.broadcast),  # States by turn; `shared` for all of them.
    out_axes=0,
    length=num_turns,
    unroll=unroll,
  )
  return scan(config, settings, places)
