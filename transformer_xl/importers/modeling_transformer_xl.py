"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860) for transformers.

An exported folder has a copy of this file, which needs PyTorch and transformers
and nothing of the package that wrote it:

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    first = model(ids)  # A text of any length is read in segments.
    then = model(more_ids, mems=first.mems)

`logits` are log-probabilities. Names of parameters are those of HuggingFace's
former TransfoXL; names of variables are those of the paper's section 3.

Shapes: B texts, T tokens of a segment, M remembered tokens, K = M + T keys,
H heads, d width of a head, D model width, V vocabulary, V_c size and E_c width
of the vectors of cluster c.
"""

import dataclasses
import itertools
import math
from typing import NamedTuple

import torch
import transformers
from torch import nn
from torch.nn import functional


class TransformerXLConfig(transformers.PretrainedConfig):
  """Sizes and rules, as config.json has them.

  Reading depends on `segment_len` (T), `mem_len` (M), `clamp_len` and
  `same_length`, which `from_pretrained` takes as arguments, too.
  """

  model_type = "transfo-xl"
  keys_to_ignore_at_inference = ("mems",)
  attribute_map = {  # noqa: RUF012  (transformers reads it like this)
    "hidden_size": "d_model",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
  }

  def own(self, name: str, default: object = None) -> object:
    """A field of the model that TransfoXL's config.json had no name for."""
    return self.transformer_xl["model"].get(name, default)

  def clusters(self) -> list[tuple[int, int, int]]:
    """First id, id after the last, and width E_c of each cluster."""
    bounds = itertools.pairwise((0, *self.cutoffs, self.vocab_size))
    return [
      (start, stop, self.d_embed // self.div_val**index)
      for index, (start, stop) in enumerate(bounds)
    ]

  def has_projection(self, width: int) -> bool:
    """Whether vectors of this width are projected to D."""
    always = self.div_val > 1 and self.own("project_equal_width", True)
    return width != self.d_model or always


class Memory(NamedTuple):
  """What was read, `mems`: of each layer the keys and values of M tokens.

  In training it holds the layer's inputs instead, as in the paper: so W_k and
  W_v learn from what is remembered as well.
  """

  layers: tuple[tuple[torch.Tensor, ...], ...]  # [B, M, H d] twice or [B, M, D].
  num_read: int  # Tokens, remembered or not.


class AdaptiveEmbedding(nn.Module):
  """Vectors that are narrower for rarer words, projected and times sqrt(D)."""

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    parts = config.clusters()
    if config.div_val == 1:  # One table for all clusters.
      parts = [(0, config.vocab_size, config.d_embed)]
    self.parts = parts
    self.scale = math.sqrt(config.d_model)
    self.emb_layers = nn.ModuleList(
      nn.Embedding(stop - start, width) for start, stop, width in parts
    )
    self.emb_projs = nn.ParameterDict(
      {
        str(index): torch.zeros(config.d_model, width)
        for index, (_, _, width) in enumerate(parts)
        if config.has_projection(width)
      }
    )

  def forward(self, ids: torch.Tensor) -> torch.Tensor:
    """[B, T] to [B, T, D]."""
    result = 0
    for index, (start, stop, _) in enumerate(self.parts):
      inside = (ids >= start) & (ids < stop)
      vectors = self.emb_layers[index](torch.where(inside, ids - start, 0))
      if str(index) in self.emb_projs:
        vectors = vectors @ self.emb_projs[str(index)].T
      result = result + torch.where(inside[..., None], vectors, 0)
    return result * self.scale


class AdaptiveSoftmax(nn.Module):
  """Softmax of a shortlist and tail clusters (Grave et al. 2017).

  It takes from the input what it does not have: tables if words are tied, and
  the projections of clusters with `tie_projs`.
  """

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    self.parts = parts = config.clusters()
    self.num_tables = 1 if config.div_val == 1 else len(parts)
    self.out_layers = nn.ModuleList()
    for index in range(self.num_tables):
      start, stop, width = parts[index]
      if self.num_tables == 1:
        stop = config.vocab_size
      table = {"bias": torch.zeros(stop - start)}
      if not config.tie_word_embeddings:
        table["weight"] = torch.zeros(stop - start, width)
      self.out_layers.append(nn.ParameterDict(table))
    self.out_projs = nn.ParameterDict(
      {
        str(index): torch.zeros(config.d_model, width)
        for index, (_, _, width) in enumerate(parts)
        if config.has_projection(width) and not config.tie_projs[index]
      }
    )
    if len(parts) > 1:
      shape = (len(parts) - 1, config.d_embed)
      self.cluster_weight = nn.Parameter(torch.zeros(shape))
      self.cluster_bias = nn.Parameter(torch.zeros(shape[0]))

  def forward(
    self, hidden: torch.Tensor, embedding: AdaptiveEmbedding
  ) -> torch.Tensor:
    """Log-probabilities [..., V] after states [..., D], in float32."""
    head = self._logits(hidden, embedding, 0)
    size = self.parts[0][1]
    if len(self.parts) > 1:
      narrow = self._narrow(hidden, embedding, 0)
      tails = functional.linear(narrow, self.cluster_weight, self.cluster_bias)
      head = torch.cat([head, tails], -1)
    head = torch.log_softmax(head.float(), -1)
    result = [head[..., :size]]
    for index in range(1, len(self.parts)):
      tail = self._logits(hidden, embedding, index).float()
      cluster = head[..., size + index - 1, None]
      result.append(cluster + torch.log_softmax(tail, -1))
    return torch.cat(result, -1)

  def _narrow(
    self, hidden: torch.Tensor, embedding: AdaptiveEmbedding, index: int
  ) -> torch.Tensor:
    """States in the width E_c of a cluster."""
    theirs = str(min(index, self.num_tables - 1))
    if str(index) in self.out_projs:
      return hidden @ self.out_projs[str(index)]
    if theirs in embedding.emb_projs:
      return hidden @ embedding.emb_projs[theirs]
    return hidden

  def _logits(
    self, hidden: torch.Tensor, embedding: AdaptiveEmbedding, index: int
  ) -> torch.Tensor:
    """Logits [..., V_c] of the words of a cluster."""
    table = min(index, self.num_tables - 1)
    own = self.out_layers[table]
    kernel = own["weight"] if "weight" in own else None
    if kernel is None:
      kernel = embedding.emb_layers[table].weight
    start, stop, _ = self.parts[index]
    first = 0 if self.num_tables == 1 else start
    rows = slice(start - first, stop - first)
    narrow = self._narrow(hidden, embedding, index)
    return functional.linear(narrow, kernel[rows], own["bias"][rows])


class Attention(nn.Module):
  """Attention to memory and segment (section 3.3)."""

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    self.config = config
    width = config.n_head * config.d_head
    self.qkv_net = nn.Linear(config.d_model, 3 * width, bias=False)
    self.o_net = nn.Linear(width, config.d_model, bias=False)
    self.layer_norm = nn.LayerNorm(config.d_model, config.layer_norm_epsilon)
    self.is_relative = config.own("encoding", "relative") == "relative"
    if self.is_relative:
      self.r_net = nn.Linear(config.d_model, width, bias=False)
      if config.untie_r:
        self.r_w_bias = nn.Parameter(torch.zeros(config.n_head, config.d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(config.n_head, config.d_head))

  def norm(self, rows: torch.Tensor) -> torch.Tensor:
    """What is projected: in a pre-norm model, normalised rows."""
    return self.layer_norm(rows) if self.config.pre_lnorm else rows

  def start(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The memory of inputs [B, M, D]."""
    if self.training:
      return (rows,)
    _, keys, values = self.qkv_net(self.norm(rows)).chunk(3, -1)
    return keys, values

  def forward(
    self,
    h: torch.Tensor,
    memory: tuple[torch.Tensor, ...],
    visible: torch.Tensor,
    positions: torch.Tensor,
    biases: tuple[torch.Tensor, torch.Tensor] | None,
  ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Attends from a segment to what the layer remembers and to itself.

    Args:
      h: inputs of the layer, [B, T, D].
      memory: what it remembers, of M tokens.
      visible: True where a query may see a key, [B or 1, T, K].
      positions: encodings R of the distances K-1 ... 0, [K, D]; otherwise only
        their number matters.
      biases: u and v, [H, d] each, if layers share them.

    Returns:
      What is added to the residual stream, [B, T, D], and the memory with it.
    """
    config = self.config
    if len(memory) != (1 if self.training else 2):
      raise ValueError(
        "mems is from training and the model is evaluated, or the other way "
        "round; read the text again after train() or eval()"
      )
    if self.training:
      rows = torch.cat([memory[0], h], 1)
      q, k, v = self.qkv_net(self.norm(rows)).chunk(3, -1)
      q = q[:, -h.shape[1] :]
      remembered = (rows,)
    else:
      q, k, v = self.qkv_net(self.norm(h)).chunk(3, -1)
      k = torch.cat([memory[0], k], 1)
      v = torch.cat([memory[1], v], 1)
      remembered = (k, v)

    q, k, v = (x.unflatten(-1, (config.n_head, config.d_head)) for x in (q, k, v))
    num_queries = q.shape[1]
    num_keys = k.shape[1]
    if config.own("encoding") == "rope":
      angles = rotary_angles(config, num_keys, q)
      q = rotated(q, angles[-num_queries:])
      k = rotated(k, angles)
    content_query = q
    if self.is_relative:
      u, bias = biases or (self.r_w_bias, self.r_r_bias)
      content_query = q + u
      r = self.r_net(positions).unflatten(-1, (config.n_head, config.d_head))
    scores = torch.einsum("bihd,bjhd->bhij", content_query, k)
    if self.is_relative:
      by_distance = torch.einsum("bihd,jhd->bhij", q + bias, r)
      scores = scores + relative_shift(by_distance)
    scores = scores.float() / math.sqrt(config.d_head)
    if config.own("encoding") == "alibi":
      slopes = alibi_slopes(config.n_head, scores)
      distance = distances(num_queries, num_keys, scores.device)
      scores = scores - slopes[:, None, None] * distance

    scores = scores.masked_fill(~visible[:, None], torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1).to(v.dtype)
    weights = functional.dropout(weights, config.dropatt, self.training)
    attended = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)
    return self.o_net(attended), remembered


class FeedForward(nn.Module):
  """Two dense layers with a ReLU and dropout after each."""

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    self.CoreNet = nn.Sequential(
      nn.Linear(config.d_model, config.d_inner),
      nn.ReLU(),
      nn.Dropout(config.dropout),
      nn.Linear(config.d_inner, config.d_model),
      nn.Dropout(config.dropout),
    )
    self.layer_norm = nn.LayerNorm(config.d_model, config.layer_norm_epsilon)


class Layer(nn.Module):
  """Attention and feed-forward part, with residuals and norms."""

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    self.pre_norm = config.pre_lnorm
    self.dec_attn = Attention(config)
    self.pos_ff = FeedForward(config)
    self.dropout = nn.Dropout(config.dropout)

  def forward(
    self, h: torch.Tensor, *rest: object
  ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Takes and returns what `Attention` does."""
    mixed, remembered = self.dec_attn(h, *rest)
    h = h + self.dropout(mixed)
    if self.pre_norm:
      inner = self.pos_ff.CoreNet(self.pos_ff.layer_norm(h))
      return h + inner, remembered
    h = self.dec_attn.layer_norm(h)
    return self.pos_ff.layer_norm(h + self.pos_ff.CoreNet(h)), remembered


class Transformer(nn.Module):
  """Embedding and layers, with u and v if the layers share them."""

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    self.config = config
    self.word_emb = AdaptiveEmbedding(config)
    self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
    self.dropout = nn.Dropout(config.dropout)
    self.has_biases = not config.untie_r and self.layers[0].dec_attn.is_relative
    if self.has_biases:
      self.r_w_bias = nn.Parameter(torch.zeros(config.n_head, config.d_head))
      self.r_r_bias = nn.Parameter(torch.zeros(config.n_head, config.d_head))

  def start(self, ids: torch.Tensor) -> Memory:
    """Memory before the first token: nothing, or M vectors of zeros."""
    config = self.config
    is_empty = config.own("memory_start") == "masked"
    num_rows = 0 if is_empty else config.mem_len
    shape = (ids.shape[0], num_rows, config.d_model)
    rows = self.word_emb.emb_layers[0].weight.new_zeros(shape)
    return Memory(tuple(one.dec_attn.start(rows) for one in self.layers), 0)

  def forward(
    self, ids: torch.Tensor, memory: Memory, mask: torch.Tensor | None
  ) -> tuple[torch.Tensor, Memory]:
    """Reads a segment.

    Args:
      ids: of the tokens, [B, T].
      memory: of the segments before.
      mask: False for padding among all keys, [B, K]; or None.

    Returns:
      States of the last layer, [B, T, D], and the next memory.
    """
    config = self.config
    num_queries = ids.shape[1]
    num_keys = memory.layers[0][0].shape[1] + num_queries
    distance = distances(num_queries, num_keys, ids.device)
    visible = (distance >= 0)[None]
    if config.same_length and config.mem_len > 0:
      reach = config.mem_len
      if config.own("same_length_window") == "mem_len":
        reach -= 1
      visible = visible & (distance <= reach)
    if mask is not None:  # A token always sees itself.
      visible = visible & (mask[:, None] | (distance == 0))

    h = self.dropout(self.word_emb(ids))
    positions = sinusoids(config, num_keys, h)
    positions = self.dropout(positions)
    biases = (self.r_w_bias, self.r_r_bias) if self.has_biases else None
    layers = []
    for layer, rows in zip(self.layers, memory.layers, strict=True):
      h, held = layer(h, rows, visible, positions, biases)
      first = max(num_keys - config.mem_len, 0)
      layers.append(tuple(one[:, first:].detach() for one in held))
    next_memory = Memory(tuple(layers), memory.num_read + num_queries)
    return self.dropout(h), next_memory


@dataclasses.dataclass
class Output(transformers.utils.ModelOutput):
  """Log-probabilities of every next token, and what was remembered."""

  loss: torch.Tensor | None = None
  logits: torch.Tensor | None = None  # [B, all tokens, V].
  mems: Memory | None = None


class TransformerXLForCausalLM(
  transformers.PreTrainedModel, transformers.GenerationMixin
):
  """The language model."""

  config_class = TransformerXLConfig
  _no_split_modules = ("Layer",)
  # A constant that TransfoXL kept with its parameters.
  _keys_to_ignore_on_load_unexpected = (r"pos_emb\.inv_freq",)

  def __init__(self, config: TransformerXLConfig):
    super().__init__(config)
    self.transformer = Transformer(config)
    self.crit = AdaptiveSoftmax(config)
    self.post_init()

  def get_input_embeddings(self) -> nn.Module:
    """The tables of the vocabulary."""
    return self.transformer.word_emb

  def forward(
    self,
    input_ids: torch.Tensor,
    mems: Memory | None = None,
    attention_mask: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    use_cache: bool | None = None,
    logits_to_keep: int = 0,
    **_: object,
  ) -> Output:
    """Reads tokens in segments, each with the memory of those before.

    Args:
      input_ids: ids, [B, any number of tokens].
      mems: the `mems` of the text before; None at its start.
      attention_mask: 0 for padding, [B, all tokens so far].
      labels: `input_ids` for the mean loss; -100 leaves a token out.
      use_cache: False returns no memory.
      logits_to_keep: of so many last tokens; 0 for all.
    """
    num_tokens = input_ids.shape[1]
    memory = self.transformer.start(input_ids) if mems is None else mems
    mask = None if attention_mask is None else attention_mask.bool()
    if mask is not None and bool(mask.all()):
      mask = None
    if mask is not None and self.config.own("memory_start") == "zeros":
      is_left = (~mask[:, :-1] & mask[:, 1:]).any()
      if is_left:
        raise ValueError(
          "this model attends to zeros before a text (memory_start), so texts "
          "cannot be padded on the left; pad on the right, or read one at a time"
        )
    states = []
    rest = num_tokens
    for ids in input_ids.split(self.config.segment_len, 1):
      rest -= ids.shape[1]
      num_keys = memory.layers[0][0].shape[1] + ids.shape[1]
      seen = None
      if mask is not None:
        seen = mask[:, max(mask.shape[1] - rest - num_keys, 0) : mask.shape[1] - rest]
        seen = functional.pad(seen, (num_keys - seen.shape[1], 0), value=True)
      hidden, memory = self.transformer(ids, memory, seen)
      states.append(hidden)
    hidden = torch.cat(states, 1)[:, -logits_to_keep:]
    logits = self.crit(hidden, self.transformer.word_emb)
    loss = None
    if labels is not None:
      targets = labels[:, -logits.shape[1] :][:, 1:].flatten()
      loss = functional.nll_loss(logits[:, :-1].flatten(0, 1), targets)
    # Without memory there is nothing to continue from: read the text again.
    is_kept = use_cache is not False and self.config.mem_len > 0
    return Output(loss, logits, memory if is_kept else None)

  def prepare_inputs_for_generation(
    self,
    input_ids: torch.Tensor,
    mems: Memory | None = None,
    attention_mask: torch.Tensor | None = None,
    use_cache: bool | None = None,
    **_: object,
  ) -> dict[str, object]:
    """Arguments of `forward`: of the text, what was not read yet."""
    return {
      "input_ids": input_ids[:, mems.num_read if mems else 0 :],
      "mems": mems,
      "attention_mask": attention_mask,
      "use_cache": use_cache,
      "logits_to_keep": 1,
    }

  def _update_model_kwargs_for_generation(
    self, outputs: Output, model_kwargs: dict[str, object], **rest: object
  ) -> dict[str, object]:
    """Hands the memory to the next step of `generate`."""
    kwargs = super()._update_model_kwargs_for_generation(
      outputs, model_kwargs, **rest
    )
    return kwargs | {"mems": outputs.mems}

  @classmethod
  def _supports_default_dynamic_cache(cls) -> bool:
    """No: `generate` would otherwise make a cache of another kind."""
    return False

  @staticmethod
  def _reorder_cache(mems: Memory | None, beams: torch.Tensor) -> Memory | None:
    """The memory of these texts, for beam search."""
    if mems is None:
      return None
    layers = (tuple(rows[beams] for rows in layer) for layer in mems.layers)
    return mems._replace(layers=tuple(layers))

  @torch.no_grad()
  def _init_weights(self, module: nn.Module) -> None:
    """Draws what a folder does not have."""
    for name, values in module.named_parameters(recurse=False):
      if getattr(values, "_is_hf_initialized", False):
        continue
      if values.ndim > 1:
        nn.init.normal_(values, std=self.config.init_std)
      else:
        is_scale = isinstance(module, nn.LayerNorm) and name == "weight"
        nn.init.constant_(values, float(is_scale))


def distances(
  num_queries: int, num_keys: int, device: torch.device
) -> torch.Tensor:
  """Distance from each query back to each key, [T, K]; negative for later ones."""
  keys = torch.arange(num_keys, device=device)
  return keys[num_keys - num_queries :, None] - keys[None]


def sinusoids(
  config: TransformerXLConfig, num_keys: int, like: torch.Tensor
) -> torch.Tensor:
  """Encodings R of the distances K-1 ... 0, [K, D]: sines, then cosines."""
  distance = torch.arange(num_keys - 1, -1, -1.0, device=like.device)
  if config.clamp_len > 0:
    distance = distance.clamp(max=config.clamp_len)
  exponents = torch.arange(0, config.d_model, 2.0, device=like.device)
  angles = distance[:, None] * 10000 ** (-exponents / config.d_model)
  return torch.cat([angles.sin(), angles.cos()], -1).to(like.dtype)


def relative_shift(by_distance: torch.Tensor) -> torch.Tensor:
  """Columns of distances K-1 ... 0 to columns of keys, [..., T, K].

  Row i moves left by T-1-i (appendix B). What then stands at later keys belongs
  to other rows, and is hidden.
  """
  *_, num_queries, num_keys = by_distance.shape
  padded = functional.pad(by_distance, (1, 0)).flatten(-2)
  return padded[..., num_queries:].unflatten(-1, (num_queries, num_keys))


def rotary_angles(
  config: TransformerXLConfig, num_keys: int, like: torch.Tensor
) -> torch.Tensor:
  """Angles of the positions 0 ... K-1, [K, 1, d / 2] (Su et al. 2021)."""
  exponents = torch.arange(0, config.d_head, 2.0, device=like.device)
  frequencies = 10000 ** (-exponents / config.d_head)
  positions = torch.arange(num_keys, device=like.device)
  scaled = positions * config.own("position_scale", 1.0)
  return scaled[:, None, None] * frequencies


def rotated(rows: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
  """Rotates the channels k and k + d / 2 of [B, rows, H, d] in their plane."""
  first, second = rows.float().chunk(2, -1)
  cosine = angles.cos()
  sine = angles.sin()
  turned = (first * cosine - second * sine, second * cosine + first * sine)
  return torch.cat(turned, -1).to(rows.dtype)


def alibi_slopes(num_heads: int, like: torch.Tensor) -> torch.Tensor:
  """How much scores of each head fall with distance, [H] (Press et al. 2021)."""
  power = 1 << (num_heads.bit_length() - 1)  # The largest up to `num_heads`.
  slopes = [2 ** (-8 * (index + 1) / power) for index in range(power)]
  finer = [2 ** (-4 * (index + 1) / power) for index in range(0, 2 * power, 2)]
  return torch.tensor((slopes + finer)[:num_heads], device=like.device)
