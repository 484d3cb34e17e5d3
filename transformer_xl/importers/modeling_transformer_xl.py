"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860) for transformers.

A folder for transformers has a copy of this file. It needs PyTorch and
transformers alone, and nothing of the package that wrote the folder:

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    first = model(ids)  # A text of any length is read in segments.
    then = model(more_ids, mems=first.mems)
    more = model.generate(more_ids, mems=first.mems)

`logits` are log-probabilities. Parameters have the names of TransfoXL, which
transformers had up to version 4; variables have those of the paper. The entry
`transformer_xl` of config.json has the options that TransfoXL had not, such as
RMS norms and gated feed-forward parts.

Shapes: B texts, T tokens of a segment, M remembered tokens, K = M + T keys,
H heads of queries, G of keys and values, d width of a head, D model width,
F width inside the feed-forward part, V vocabulary, V_c words and E_c width of
cluster c.
"""

import dataclasses
import itertools
import math
from typing import NamedTuple

import torch
import transformers
from torch import Tensor
from torch import nn
from torch.nn import functional
from transformers import utils

_GIVE_MEMS = "give the memory that a call of this model returned, as mems"
_UNPACK = (
  "give each text a row of its own, since texts in one row see each other"
)
# What to do in place of giving an argument that other models have.
INSTEAD = {
  "cache": _GIVE_MEMS,
  "past_key_values": _GIVE_MEMS,
  "cache_position": "leave it out, since a memory knows how much it has read",
  "position_ids": (
    "leave it out, since positions are those in input_ids; mark padding in "
    "attention_mask"
  ),
  "inputs_embeds": "give input_ids, and tune with LoRA in place of prompts",
  "token_type_ids": "leave it out, since tokens have no types",
  "shift_labels": "give labels, as many as input_ids, which are shifted here",
  "is_causal": "leave it out, since no token can see later ones",
  "cu_seq_lens_q": _UNPACK,
  "cu_seq_lens_k": _UNPACK,
  "max_length_q": _UNPACK,
  "max_length_k": _UNPACK,
  "seq_idx": _UNPACK,
}
# Values that ask for nothing, beside None.
NOTHING = {"is_causal": True, "output_router_logits": False}


class TransformerXLConfig(transformers.PretrainedConfig):
  """The fields of config.json.

  `segment_len` (T), `mem_len` (M), `clamp_len` and `same_length` are no sizes
  of parameters: `from_pretrained` takes others as arguments.
  """

  model_type = "transformer-xl"
  use_cache: bool = True
  # The Trainer adds a list to it.
  keys_to_ignore_at_inference = ["mems"]  # noqa: RUF012
  attribute_map = {  # noqa: RUF012  (a plain dict is what transformers copies)
    "hidden_size": "d_model",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
  }

  def later(self, name: str, default: object = None) -> object:
    """A field that TransfoXL did not have."""
    return self.transformer_xl["model"].get(name, default)

  @property
  def encoding(self) -> object:
    """How positions are encoded: relative, rope, alibi or none."""
    return self.later("encoding", "relative")

  def clusters(self) -> list[tuple[int, int, int]]:
    """First word, word after the last, and E_c of each cluster."""
    ends = itertools.pairwise((0, *self.cutoffs, self.vocab_size))
    widths = (self.d_embed // self.div_val**c for c in itertools.count())
    return [(*end, width) for end, width in zip(ends, widths, strict=False)]

  def projections(self, skipped: list[bool]) -> nn.ParameterDict:
    """Matrices [D, E_c] for clusters whose vectors are projected to D."""
    always = self.div_val > 1 and self.later("project_equal_width", True)
    widths = (width for _, _, width in self.clusters())
    return nn.ParameterDict(
      {
        str(c): torch.zeros(self.d_model, width)
        for c, (width, skip) in enumerate(zip(widths, skipped, strict=False))
        if not skip and (always or width != self.d_model)
      }
    )


class Memory(NamedTuple):
  """What was read: of each layer the keys and values of the last M tokens.

  In training it holds the layer's inputs instead, as in the paper, since W_k
  and W_v also learn from what is remembered.
  """

  layers: tuple[tuple[Tensor, ...], ...]  # [B, M, G, d] twice, or [B, M, D].
  num_read: int  # Tokens, remembered or not.
  mask: Tensor | None = None  # False for padding, [B, M]; None without any.

  @property
  def is_croppable(self) -> bool:
    """Whether the last tokens can be taken back, which `generate` asks."""
    return False

  @property
  def shape(self) -> torch.Size:
    """B and M."""
    return self.layers[0][0].shape[:2]

  def of(self, texts: Tensor) -> "Memory":
    """The memories of these texts, which may repeat."""
    layers = tuple(tuple(rows[texts] for rows in one) for one in self.layers)
    mask = None if self.mask is None else self.mask[texts]
    return self._replace(layers=layers, mask=mask)

  def padding(self) -> Tensor:
    """False for remembered tokens that are padding, [B, M]."""
    if self.mask is None:
      rows = self.layers[0][0]
      return rows.new_ones(self.shape, dtype=torch.bool)
    return self.mask


class AdaptiveEmbedding(nn.Module):
  """Vectors that are narrower for rarer words (Baevski & Auli 2019)."""

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    self.scale = math.sqrt(config.d_model)
    self.parts = config.clusters()
    if config.div_val == 1:  # One table for all clusters.
      self.parts = [(0, config.vocab_size, config.d_embed)]
    self.emb_layers = nn.ModuleList(
      nn.Embedding(stop - start, width) for start, stop, width in self.parts
    )
    self.emb_projs = config.projections([False] * len(self.parts))

  def forward(self, ids: Tensor) -> Tensor:
    """[B, T] to [B, T, D]."""
    result = 0
    for c, (start, stop, _) in enumerate(self.parts):
      inside = (ids >= start) & (ids < stop)
      # Words of other clusters read row 0; those of none are an IndexError.
      is_before = (ids >= 0) & (ids < start)
      is_after = (ids >= stop) & (c + 1 < len(self.parts))
      rows = torch.where(is_before | is_after, 0, ids - start)
      vectors = self.emb_layers[c](rows)
      if str(c) in self.emb_projs:
        vectors = vectors @ self.emb_projs[str(c)].T
      result = result + torch.where(inside[..., None], vectors, 0)
    return result * self.scale


class AdaptiveSoftmax(nn.Module):
  """Softmax over a shortlist and tail clusters (Grave et al. 2017).

  Tied tables and projections are those of the embedding.
  """

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    self.parts = config.clusters()
    self.out_layers = nn.ModuleList()
    tables = self.parts
    if config.div_val == 1:
      tables = [(0, config.vocab_size, config.d_embed)]
    for start, stop, width in tables:
      parameters = {"bias": torch.zeros(stop - start)}
      if not config.tie_word_embeddings:
        parameters["weight"] = torch.zeros(stop - start, width)
      self.out_layers.append(nn.ParameterDict(parameters))
    self.out_projs = config.projections(config.tie_projs)
    if len(self.parts) > 1:
      num_tails = len(self.parts) - 1
      self.cluster_weight = nn.Parameter(torch.zeros(num_tails, config.d_embed))
      self.cluster_bias = nn.Parameter(torch.zeros(num_tails))

  def forward(self, h: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
    """Log-probabilities [B, T, V] after states [B, T, D]."""
    result = []
    for c, (start, stop, _) in enumerate(self.parts):
      table = min(c, len(self.out_layers) - 1)
      first = start if len(self.out_layers) > 1 else 0
      own = self.out_layers[table]
      kernel = own.get("weight")
      if kernel is None:
        kernel = tied_weight(embedding.emb_layers[table])
      kernel = kernel[start - first : stop - first]
      bias = own["bias"][start - first : stop - first]
      narrow = h  # [B, T, E_c]
      if str(c) in self.out_projs:
        narrow = h @ self.out_projs[str(c)]
      elif str(table) in embedding.emb_projs:
        narrow = h @ embedding.emb_projs[str(table)]
      if c == 0 and len(self.parts) > 1:  # A column for each tail cluster.
        kernel = torch.cat([kernel, self.cluster_weight])
        bias = torch.cat([bias, self.cluster_bias])
      logits = functional.linear(narrow, kernel, bias)
      log_probs = torch.log_softmax(logits.float(), -1)
      if c == 0:
        result.append(log_probs[..., :stop])
        tails = log_probs[..., stop:]
      else:
        result.append(log_probs + tails[..., c - 1, None])
    return torch.cat(result, -1)


class Attention(nn.Module):
  """Attention to memory and segment (section 3.3)."""

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    self.config = config
    width = config.n_head * config.d_head
    shared_width = config.later("num_kv_heads") * config.d_head
    self.widths = [width, shared_width, shared_width]
    self.qkv_net = nn.Linear(config.d_model, sum(self.widths), bias=False)
    self.o_net = nn.Linear(width, config.d_model, bias=False)
    self.layer_norm = make_norm(config)
    if config.later("qk_norm"):
      self.q_norm = nn.RMSNorm(config.d_head, config.layer_norm_epsilon)
      self.k_norm = nn.RMSNorm(config.d_head, config.layer_norm_epsilon)
    if config.encoding == "relative":
      self.r_net = nn.Linear(config.d_model, width, bias=False)
      if config.untie_r:
        add_biases(self, config)

  def project(self, rows: Tensor) -> tuple[Tensor, ...]:
    """Queries [B, rows, H, d], and keys and values [B, rows, G, d]."""
    config = self.config
    rows = self.layer_norm(rows) if config.pre_lnorm else rows
    projected = self.qkv_net(rows).split(self.widths, -1)
    q, k, v = (part.unflatten(-1, (-1, config.d_head)) for part in projected)
    if config.later("qk_norm"):
      q = self.q_norm(q)
      k = self.k_norm(k)
    return q, k, v

  def forward(
    self,
    h: Tensor,
    memory: tuple[Tensor, ...],
    distance: Tensor,
    visible: Tensor,
    encodings: Tensor,
    biases: nn.Module,
  ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """What is added to the residual stream, [B, T, D], and the memory with h.

    The third result has the weights of the keys, [B, H, T, K].

    Args:
      h: inputs of the layer, [B, T, D].
      memory: what it remembers.
      distance: from each query back to each key, [T, K].
      visible: where a query may see a key, [B or 1, T, K].
      encodings: R of the distances K-1 ... 0, [K, D].
      biases: what has u and v, unless the layer has its own.
    """
    config = self.config
    if len(memory) != (1 if self.training else 2):
      raise ValueError("mems must be read again after train() or eval()")
    if self.training:
      memory = (torch.cat([memory[0], h], 1),)
      q, k, v = self.project(memory[0])
      q = q[:, -h.shape[1] :]
    else:
      q, k, v = self.project(h)
      k = torch.cat([memory[0], k], 1)
      v = torch.cat([memory[1], v], 1)
      memory = (k, v)

    if config.encoding == "rope":
      positions = torch.arange(k.shape[1], device=k.device)
      frequencies = rotary_frequencies(config.d_head, config.later("rope", {}))
      frequencies = frequencies.to(k.device)
      q = rotated(q, positions[-q.shape[1] :], frequencies)
      k = rotated(k, positions, frequencies)
    num_shares = config.n_head // k.shape[2]  # Neighbouring heads of queries.
    k, v = (rows.repeat_interleave(num_shares, 2) for rows in (k, v))
    if config.encoding == "relative":
      own = self if config.untie_r else biases
      u, v_bias = own.r_w_bias, own.r_r_bias
      r = self.r_net(encodings).unflatten(-1, (-1, config.d_head))
      scores = torch.einsum("bihd,bjhd->bhij", q + u, k)
      by_distance = torch.einsum("bihd,jhd->bhij", q + v_bias, r)
      scores = scores + relative_shift(by_distance)
    else:
      scores = torch.einsum("bihd,bjhd->bhij", q, k)
    scores = scores.float() / math.sqrt(config.d_head)
    if config.encoding == "alibi":
      slopes = torch.tensor(alibi_slopes(config.n_head), device=h.device)
      scores = scores - slopes[:, None, None] * distance

    hidden = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~visible[:, None], hidden)
    weights = torch.softmax(scores, -1).to(v.dtype)
    weights = functional.dropout(weights, config.dropatt, self.training)
    attended = torch.einsum("bhij,bjhd->bihd", weights, v)
    return self.o_net(attended.flatten(2)), memory, weights


class Gated(nn.Module):
  """One half of the channels times a function of the other (Shazeer 2020)."""

  def __init__(self, activation: nn.Module):
    super().__init__()
    self.activation = activation

  def forward(self, rows: Tensor) -> Tensor:
    """[B, T, 2 F] to [B, T, F]."""
    inner, gate = rows.chunk(2, -1)
    return self.activation(gate) * inner


class FeedForward(nn.Module):
  """Two dense layers with a ReLU or a gate, and the norm beside them."""

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    kind = config.later("feed_forward", "relu")
    activation = {
      "relu": nn.ReLU(),
      "swiglu": Gated(nn.SiLU()),
      "geglu": Gated(nn.GELU("tanh")),
    }[kind]
    is_gated = kind != "relu"
    width = 2 * config.d_inner if is_gated else config.d_inner
    self.CoreNet = nn.Sequential(
      nn.Linear(config.d_model, width, bias=not is_gated),
      activation,
      nn.Dropout(config.dropout),
      nn.Linear(config.d_inner, config.d_model, bias=not is_gated),
      nn.Dropout(config.dropout),
    )
    self.layer_norm = make_norm(config)


class Layer(nn.Module):
  """Attention and feed-forward part, with residuals and norms."""

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    self.is_pre_norm = config.pre_lnorm
    self.dec_attn = Attention(config)
    self.pos_ff = FeedForward(config)
    self.dropout = nn.Dropout(config.dropout)

  def forward(
    self, h: Tensor, *shared: object
  ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """The next layer's input, memory and weights; arguments of `Attention`."""
    mixed, memory, weights = self.dec_attn(h, *shared)
    x = h + self.dropout(mixed)
    if self.is_pre_norm:
      x = x + self.pos_ff.CoreNet(self.pos_ff.layer_norm(x))
    else:
      x = self.dec_attn.layer_norm(x)
      x = self.pos_ff.layer_norm(x + self.pos_ff.CoreNet(x))
    return x, memory, weights


class Transformer(nn.Module):
  """Embedding and layers; u and v, unless each layer has its own."""

  def __init__(self, config: TransformerXLConfig):
    super().__init__()
    self.config = config
    self.word_emb = AdaptiveEmbedding(config)
    self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
    has_final_norm = config.later("final_norm")
    self.final_norm = make_norm(config) if has_final_norm else nn.Identity()
    self.dropout = nn.Dropout(config.dropout)
    if config.encoding == "relative" and not config.untie_r:
      add_biases(self, config)

  def start(self, num_texts: int) -> Memory:
    """Memory before the first token: nothing, or M vectors of zeros."""
    is_empty = self.config.later("memory_start") == "masked"
    rows = self.word_emb.emb_layers[0].weight.new_zeros(
      num_texts, 0 if is_empty else self.config.mem_len, self.config.d_model
    )
    layers = []
    for layer in self.layers:
      of_layer = (rows,) if self.training else layer.dec_attn.project(rows)[1:]
      layers.append(of_layer)
    return Memory(tuple(layers), 0)

  def forward(
    self,
    ids: Tensor,
    memory: Memory,
    mask: Tensor | None,
    keeps_weights: bool,
  ) -> tuple[Memory, list[Tensor], list[Tensor]]:
    """The memory after a segment, the states and the weights of its keys.

    States are the embedding and what each layer made of it, the last one as the
    softmax reads it, [B, T, D]. Weights are those of each layer, [B, H, T, K].

    Args:
      ids: [B, T].
      memory: of what was read before.
      mask: False for padding, [B, T]; None without any.
      keeps_weights: whether weights are kept, which take most memory.
    """
    config = self.config
    num_keys = memory.shape[1] + ids.shape[1]
    keys = torch.arange(num_keys, device=ids.device)
    distance = keys[num_keys - ids.shape[1] :, None] - keys
    visible = (distance >= 0)[None]
    if config.same_length and config.mem_len > 0:
      has_one_more = config.later("same_length_window") == "mem_len_plus_one"
      visible = visible & (distance < config.mem_len + has_one_more)
    if mask is None and memory.mask is not None:
      mask = torch.ones_like(ids, dtype=torch.bool)
    if mask is not None:  # A token always sees itself.
      mask = torch.cat([memory.padding(), mask], 1)
      visible = visible & (mask[:, None] | (distance == 0))

    h = self.dropout(self.word_emb(ids))
    encodings = sinusoids(keys.flip(0), config).to(h.dtype)
    shared = (distance, visible, self.dropout(encodings), self)
    states = [h]
    weights = []
    layers = []
    start = max(num_keys - config.mem_len, 0)
    for layer, rows in zip(self.layers, memory.layers, strict=True):
      h, kept, of_layer = layer(h, rows, *shared)
      states.append(h)
      if keeps_weights:
        weights.append(of_layer)
      layers.append(tuple(rows[:, start:].detach() for rows in kept))
    states[-1] = self.dropout(self.final_norm(h))
    memory = Memory(
      tuple(layers),
      memory.num_read + ids.shape[1],
      None if mask is None else mask[:, start:],
    )
    return memory, states, weights


@dataclasses.dataclass
class Output(utils.ModelOutput):
  """The mean loss, log-probabilities of next tokens [B, T, V], and memory.

  Hidden states are the embedding and what each layer made of it, the last one
  as the softmax reads it, [B, tokens, D]. Attentions are the weights of the
  remembered tokens and these, for each layer, [B, H, tokens, M + tokens]; 0
  where one is no longer remembered.
  """

  loss: Tensor | None = None
  logits: Tensor | None = None
  mems: Memory | None = None
  hidden_states: tuple[Tensor, ...] | None = None
  attentions: tuple[Tensor, ...] | None = None

  def get(self, key: str, default: object = None) -> object:
    """A field; memory also by the names of a cache, as guidance asks for it."""
    is_cache = key in ("cache", "past_key_values")
    return super().get("mems" if is_cache else key, default)


class TransformerXLForCausalLM(
  transformers.PreTrainedModel, transformers.GenerationMixin
):
  """The language model."""

  config_class = TransformerXLConfig
  # A constant that TransfoXL kept beside its parameters.
  _keys_to_ignore_on_load_unexpected = (r"pos_emb\.inv_freq",)
  # The loss is a mean over the tokens of a call, so the Trainer is to divide it
  # by the number of calls that an update takes.
  accepts_loss_kwargs = False
  # What was read cannot be taken back, as assisted generation would.
  _is_stateful = True

  def __init__(self, config: TransformerXLConfig):
    super().__init__(config)
    self.transformer = Transformer(config)
    self.crit = AdaptiveSoftmax(config)
    self.post_init()

  def get_input_embeddings(self) -> nn.Module:
    """The embedding."""
    return self.transformer.word_emb

  def set_input_embeddings(self, value: nn.Module) -> None:
    """Raises a ValueError: there is no other embedding."""
    raise ValueError(
      "set_input_embeddings: this model's embedding has a table for each "
      "cluster of words; change the weights of transformer.word_emb.emb_layers"
    )

  def resize_token_embeddings(
    self, new_num_tokens: int | None = None, *_: object, **__: object
  ) -> nn.Module:
    """The embedding.

    Raises:
      ValueError: the size is not that of the vocabulary.
    """
    size = self.config.vocab_size
    if new_num_tokens not in (None, size):
      raise ValueError(
        f"resize_token_embeddings: the tables and clusters of this model are "
        f"for {size} words, and not {new_num_tokens}; train one with the "
        "vocabulary that you want"
      )
    return self.get_input_embeddings()

  @utils.can_return_tuple
  def forward(
    self,
    input_ids: Tensor | None = None,
    mems: Memory | None = None,
    attention_mask: Tensor | None = None,
    labels: Tensor | None = None,
    use_cache: bool | None = None,
    logits_to_keep: int | Tensor = 0,
    num_items_in_batch: Tensor | int | None = None,
    output_hidden_states: bool | None = None,
    output_attentions: bool | None = None,
    **others: object,
  ) -> Output:
    """Reads a text, or the next tokens of one.

    Args:
      input_ids: [B, tokens], as many as you like.
      mems: memory of the tokens before; None at the start of a text.
      attention_mask: 0 for padding and else 1, [B, tokens]. It may also have
        the tokens before, [B, tokens before and these]; else these are as in
        the calls that read them.
      labels: `input_ids` for the loss of predicting each from those before;
        -100 is not counted.
      use_cache: False if no memory should be returned; None for what the
        configuration says.
      logits_to_keep: of how many of the last tokens; 0 for all. A tensor has
        the numbers of the tokens.
      num_items_in_batch: what the loss is divided by, in place of the number
        of labels.
      output_hidden_states: True for those of every layer; None for what the
        configuration says.
      output_attentions: True for the weights of keys; None likewise.
      others: `return_dict` is False for a tuple. `cache` and `past_key_values`
        are other names of `mems`. Nothing else may be given; None is allowed.

    Raises:
      ValueError: an argument is of another form, or not one of these.
    """
    config = self.config
    memory = given_memory(
      mems=mems,
      cache=others.pop("cache", None),
      past_key_values=others.pop("past_key_values", None),
    )
    refuse(others)
    if input_ids is None:
      raise ValueError("input_ids are missing")
    if memory is None:
      memory = self.transformer.start(len(input_ids))
    if memory.shape[0] != len(input_ids):
      raise ValueError(
        f"mems have {memory.shape[0]} texts, and input_ids {len(input_ids)}: "
        "give as many"
      )
    if labels is not None and labels.shape != input_ids.shape:
      raise ValueError(
        f"labels have the shape {tuple(labels.shape)}, and input_ids "
        f"{tuple(input_ids.shape)}: give a label for each token"
      )
    mask = None
    if attention_mask is not None:
      memory, mask = self._masks(attention_mask, memory, input_ids)

    if output_hidden_states is None:
      output_hidden_states = config.output_hidden_states
    if output_attentions is None:
      output_attentions = config.output_attentions
    memory, hidden_states, attentions = self._read(
      input_ids,
      memory,
      mask,
      all_states=output_hidden_states,
      with_weights=output_attentions,
    )
    h = hidden_states[-1]
    if isinstance(logits_to_keep, Tensor):
      if labels is not None:
        raise ValueError("labels need a logits_to_keep that is a number")
      h = h[:, logits_to_keep]
    else:
      h = h[:, -logits_to_keep:]
    logits = self.crit(h, self.transformer.word_emb)
    loss = None
    if labels is not None:
      first = labels.shape[1] - logits.shape[1] + 1
      targets = labels[:, first:].flatten()
      log_probs = logits[:, :-1].flatten(0, 1)
      if num_items_in_batch is None:
        loss = functional.nll_loss(log_probs, targets)
      else:
        loss = functional.nll_loss(log_probs, targets, reduction="sum")
        loss = loss / num_items_in_batch
    use_cache = config.use_cache if use_cache is None else use_cache
    # With an M of 0, `generate` reads the whole text for each token.
    is_kept = use_cache and config.mem_len > 0
    return Output(
      loss,
      logits,
      memory if is_kept else None,
      hidden_states if output_hidden_states else None,
      attentions if output_attentions else None,
    )

  def _read(
    self,
    text: Tensor,
    memory: Memory,
    mask: Tensor | None,
    *,
    all_states: bool,
    with_weights: bool,
  ) -> tuple[Memory, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Reads a text in segments: the next memory, and states and weights.

    Both have an entry for each layer, but states only that of the last layer
    without `all_states`, and weights none without `with_weights`.
    """
    num_before = memory.shape[1]
    num_tokens = text.shape[1]
    # Both have an entry for each segment, which has one for each layer.
    states_of = []
    weights_of = []
    start = 0
    for ids in text.split(self.config.segment_len, 1):
      stop = start + ids.shape[1]
      seen = None if mask is None else mask[:, start:stop]
      memory, states, weights = self.transformer(
        ids, memory, seen, with_weights
      )
      states_of.append(states if all_states else states[-1:])
      if with_weights:
        forgotten = num_before + stop - weights[0].shape[-1]
        around = (forgotten, num_tokens - stop)
        if around != (0, 0):
          weights = [functional.pad(one, around) for one in weights]
        weights_of.append(weights)
      start = stop
    by_layer = zip(*states_of, strict=True)
    hidden_states = tuple(joined(one, 1) for one in by_layer)
    by_layer = zip(*weights_of, strict=True)
    attentions = tuple(joined(one, 2) for one in by_layer)
    return memory, hidden_states, attentions

  def _masks(
    self, given: Tensor, memory: Memory, ids: Tensor
  ) -> tuple[Memory, Tensor]:
    """The memory with its mask, and the mask of the new tokens, [B, T]."""
    num_texts, num_new = ids.shape
    if self.config.mem_len == 0 and given.shape[-1] > num_new:
      raise ValueError(
        "attention_mask has more tokens than input_ids, and this model has no "
        "memory, since its mem_len is 0: give the whole text, which generate "
        "does with use_cache=False"
      )
    wanted = [(num_texts, num_new)]
    if memory.num_read > 0:
      wanted.append((num_texts, memory.num_read + num_new))
    if tuple(given.shape) not in wanted:
      shapes = " or ".join(str(shape) for shape in wanted)
      raise ValueError(
        f"attention_mask has the shape {tuple(given.shape)}: give {shapes}, "
        "for input_ids or also for the tokens that mems have read"
      )
    mask = given.bool()
    # Values are not there while PyTorch compiles.
    is_eager = not torch.compiler.is_compiling()
    if is_eager and bool((given != mask).any()):
      raise ValueError(
        "attention_mask may have 0, for padding, and 1 alone: give each text "
        "a row of its own"
      )
    if given.shape[1] > num_new:
      num_rows = memory.shape[1]
      rows = functional.pad(mask[:, :-num_new], (num_rows, 0), value=True)
      memory = memory._replace(mask=rows[:, rows.shape[1] - num_rows :])
      mask = mask[:, -num_new:]
    if is_eager and self.config.later("memory_start") == "zeros":
      row = torch.cat([memory.padding(), mask], 1)
      if bool((~row[:, :-1] & row[:, 1:]).any()):
        raise ValueError(
          "attention_mask: no padding may stand before a token of this model, "
          "since it attends to the zeros before a text, so it cannot generate "
          "from texts of different lengths together: generate from one after "
          "the other; to score them, pad on the right"
        )
    return memory, mask

  def prepare_inputs_for_generation(
    self,
    input_ids: Tensor,
    mems: Memory | None = None,
    attention_mask: Tensor | None = None,
    num_read_before: int = 0,
    next_sequence_length: int | None = None,
    is_first_iteration: bool | None = None,
    cache_position: Tensor | None = None,
    **others: object,
  ) -> dict[str, object]:
    """What `forward` takes: the tokens that were not read yet.

    Args:
      input_ids: those that `generate` was given and has made.
      mems: memory of those that were read, and of the text before them.
      attention_mask: of `input_ids`, maybe also of the text before.
      num_read_before: of how many tokens `generate` was given a memory.
      next_sequence_length: not needed, since memory knows it.
      is_first_iteration: likewise.
      cache_position: likewise.
      others: is handed on.
    """
    del next_sequence_length, is_first_iteration, cache_position
    num_read = mems.num_read - num_read_before if mems is not None else 0
    input_ids = input_ids[:, num_read:]
    if num_read > 0 and attention_mask is not None:
      attention_mask = attention_mask[:, -input_ids.shape[1] :]
    given = {"mems": mems, "attention_mask": attention_mask}
    return {"logits_to_keep": 1} | others | given | {"input_ids": input_ids}

  def _validate_model_kwargs(self, model_kwargs: dict[str, object]) -> None:
    names = INSTEAD.keys() & model_kwargs.keys()
    refuse({name: model_kwargs[name] for name in names})
    given_memory(mems=model_kwargs.get("mems"))
    super()._validate_model_kwargs(model_kwargs)

  def _expand_inputs_for_generation(
    self,
    expand_size: int = 1,
    is_encoder_decoder: bool = False,
    input_ids: Tensor | None = None,
    mems: Memory | None = None,
    **rest: object,
  ) -> tuple[Tensor, dict[str, object]]:
    if mems is not None:  # One for each beam or sequence of a text.
      texts = torch.arange(mems.shape[0], device=mems.layers[0][0].device)
      rest["mems"] = mems.of(texts.repeat_interleave(expand_size))
      rest["num_read_before"] = mems.num_read
    return super()._expand_inputs_for_generation(
      expand_size, is_encoder_decoder, input_ids, **rest
    )

  def _update_model_kwargs_for_generation(
    self, outputs: Output, model_kwargs: dict[str, object], **rest: object
  ) -> dict[str, object]:
    # Without a cache, each token is read after what was given.
    mems = model_kwargs.get("mems") if outputs.mems is None else outputs.mems
    given = {**model_kwargs, "mems": mems}
    return super()._update_model_kwargs_for_generation(outputs, given, **rest)

  @classmethod
  def _supports_default_dynamic_cache(cls) -> bool:
    return False  # The memory takes the place of the library's cache.

  def _reorder_cache(self, mems: Memory | None, beams: Tensor) -> Memory | None:
    return None if mems is None else mems.of(beams)

  def _init_weights(self, module: nn.Module) -> None:
    super()._init_weights(module)
    if isinstance(module, nn.Linear | nn.Embedding | nn.LayerNorm):
      return
    for values in module.parameters(recurse=False):
      if values.ndim > 1 and not getattr(values, "_is_hf_initialized", False):
        nn.init.normal_(values, std=self.config.init_std)


def refuse(arguments: dict[str, object]) -> None:
  """Raises a ValueError that names an argument, unless it asks for nothing."""
  for name, value in arguments.items():
    if value is not None and value is not NOTHING.get(name):
      instead = INSTEAD.get(name, "leave it out")
      raise ValueError(f"this model has no argument {name}: {instead}")


def given_memory(**arguments: object) -> Memory | None:
  """The memory that one of these arguments has, if any."""
  memory = None
  for name, value in arguments.items():
    if value is None:
      continue
    if not isinstance(value, Memory):
      raise ValueError(f"{name} is a {type(value).__name__}: {_GIVE_MEMS}")
    if memory is not None:
      raise ValueError(f"{name} is another name of mems: give mems alone")
    memory = value
  return memory


def joined(segments: tuple[Tensor, ...], axis: int) -> Tensor:
  """The segments as one; a single one itself, whose gradient can be kept."""
  return segments[0] if len(segments) == 1 else torch.cat(segments, axis)


def tied_weight(table: nn.Module) -> Tensor:
  """The weight of a table of the embedding, for the softmax.

  Raises:
    ValueError: an adapter such as LoRA, which stands beside the table, would
      count in the embedding alone until it is merged.
  """
  is_adapted = getattr(table, "base_layer", None) is not None
  if is_adapted and not getattr(table, "merged", False):
    raise ValueError(
      "the softmax shares emb_layers with the embedding, so an adapter there "
      "would change one of them alone: leave emb_layers out of target_modules"
    )
  return table.weight


def make_norm(config: TransformerXLConfig) -> nn.Module:
  """A norm of states, with its parameters."""
  is_rms = config.later("norm") == "rms"
  kind = nn.RMSNorm if is_rms else nn.LayerNorm
  return kind(config.d_model, config.layer_norm_epsilon)


def add_biases(module: nn.Module, config: TransformerXLConfig) -> None:
  """Adds the parameters u and v, [H, d] each."""
  shape = (config.n_head, config.d_head)
  module.r_w_bias = nn.Parameter(torch.zeros(shape))
  module.r_r_bias = nn.Parameter(torch.zeros(shape))


def sinusoids(distance: Tensor, config: TransformerXLConfig) -> Tensor:
  """Encodings of distances [K], all sines, then all cosines, [K, D]."""
  if config.clamp_len > 0:
    distance = distance.clamp(max=config.clamp_len)
  channels = torch.arange(0, config.d_model, 2, device=distance.device)
  angles = distance[:, None] * 10000.0 ** (-channels / config.d_model)
  return torch.cat([angles.sin(), angles.cos()], -1)


def relative_shift(by_distance: Tensor) -> Tensor:
  """Columns of distances K-1 ... 0 to columns of keys, [B, H, T, K].

  Row i moves left by T-1-i (appendix B). What then stands at later keys belongs
  to other rows, and must be hidden.
  """
  shape = by_distance.shape[-2:]
  padded = functional.pad(by_distance, (1, 0)).flatten(-2)
  return padded[..., shape[0] :].unflatten(-1, shape)


def rotary_frequencies(width: int, own: dict[str, float]) -> Tensor:
  """Radians a position of each pair of channels [d / 2], in float32.

  Su et al. 2021. Llama 3.1 divides those that turn seldom in `original_len`
  positions by `long_factor`.
  """
  channels = torch.arange(0, width, 2, dtype=torch.float64)
  frequencies = own.get("base", 10000.0) ** (-channels / width)
  turns = own.get("original_len", 8192) * frequencies / (2 * math.pi)
  low = own.get("low_turns", 1.0)
  high = own.get("high_turns", 4.0)
  fast = ((turns - low) / (high - low)).clamp(0, 1)
  frequencies = frequencies * (fast + (1 - fast) / own.get("long_factor", 1.0))
  return (frequencies * own.get("position_scale", 1.0)).float()


def rotated(rows: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
  """Rotates [B, rows, H, d] by their positions [rows] (Su et al. 2021)."""
  angles = positions[:, None, None] * frequencies
  first, second = rows.float().chunk(2, -1)
  real = first * angles.cos() - second * angles.sin()
  imaginary = second * angles.cos() + first * angles.sin()
  return torch.cat([real, imaginary], -1).to(rows.dtype)


def alibi_slopes(num_heads: int) -> list[float]:
  """How much the scores of each head fall with distance (Press et al. 2021)."""
  power = 1 << (num_heads.bit_length() - 1)  # The largest up to `num_heads`.
  slopes = [2.0 ** (-8 * n / power) for n in range(1, power + 1)]
  between = [2.0 ** (-4 * n / power) for n in range(1, 2 * power, 2)]
  return (slopes + between)[:num_heads]
