"""Every field of a configuration once, with its default and a remark.

Other experiments start from this one and list their differences. Lengths are
in tokens; batch sizes are in lanes and global. The tests instantiate every
file here.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """A small model; sizes are placeholders for the other files."""
  config = ml_collections.ConfigDict()
  config.seed = 0  # Parameters, dropout and data rotation derive from it.
  config.model = _model()
  config.data = _data()
  config.train = _train()
  config.divergence = _divergence()
  config.eval = _eval()
  config.checkpoint = _checkpoint()
  config.mesh = _mesh()
  config.generate = _generate()
  config.score = _score()
  config.analysis = _analysis()
  return config


def _model() -> ml_collections.ConfigDict:
  model = ml_collections.ConfigDict()
  model.vocab_size = 0  # 0: as the prepared data says.
  model.num_layers = 4
  model.model_dim = 256
  model.num_heads = 4
  model.head_dim = 64
  model.ff_dim = 1024
  model.embed_dim = model.get_oneway_ref("model_dim")
  # Adaptive input and softmax (facts 2.8, 2.9).
  model.cutoffs = ()  # First ids of the tail clusters; () for one softmax.
  model.div_val = 1  # Each cluster's vectors are so many times narrower.
  # Each tail cluster has room for this share of a device's tokens, about three
  # times its share of the text; more are slower. (): room for all of them.
  model.cluster_capacities = ()
  model.tie_weights = True  # Softmax kernels are the embedding tables.
  model.tie_projections = "all_but_first"  # none | all | all_but_first
  model.project_equal_width = True  # TF's proj_same_dim, if div_val > 1.
  # Published variants.
  model.untie_biases = False  # u and v for each layer, not one for all.
  model.pre_norm = False  # Layer norm before each sub-layer, not after.
  # How order is encoded: docs/analyses.md. A learned table has so many rows:
  # distances for "shaw", the last for all beyond; positions in a segment for
  # "absolute_per_layer".
  model.encoding = "relative"  # or shaw | absolute | absolute_per_layer
  model.num_positions = 256
  # Dropout, facts 2.7 and docs/ptb.md. The first is that of position encodings
  # and in all layers; of what enters and leaves them it can be another.
  model.dropout_rate = 0.1
  model.input_dropout_rate = model.get_oneway_ref("dropout_rate")
  model.output_dropout_rate = model.get_oneway_ref("dropout_rate")
  model.attention_dropout_rate = 0.0  # Of attention's weights.
  model.embedding_dropout_rate = 0.0  # Of whole words of the vocabulary.
  model.weight_dropout_rate = 0.0  # Of the layers' matrices (DropConnect).
  model.locked_dropout = False  # One mask for all tokens of a segment.
  model.memory_start = "masked"  # masked | zeros: attended, as TF and HF do
  model.same_length_window = "mem_len_plus_one"  # or mem_len: PyTorch, HF
  model.layer_norm_epsilon = 1e-5  # TF: 1e-12.
  # Initialisation (facts 2.11): the styles differ in the layer norms' scale
  # and the softmax's cluster weights, 1 and 0 or drawn.
  model.init_style = "tensorflow"  # tensorflow | pytorch
  model.init_std = 0.02
  model.projection_init_std = 0.01
  # Computation.
  model.dtype = "float32"  # float32 | bfloat16; parameters stay float32
  # How attention is computed, "auto" by device: docs/kernels.md.
  # auto | reference | head_major | chunked | pallas
  model.attention = "auto"
  model.remat = "none"  # none | full | dots | attention: what is recomputed
  # Layers per turn of the loop over layers; 0: all on CPU, where slicing what
  # is stacked takes a tenth of the time, and 1 elsewhere.
  model.scan_unroll = 0
  return model


def _data() -> ml_collections.ConfigDict:
  data = ml_collections.ConfigDict()
  data.name = "python_stdlib"  # The folder below `dir`.
  data.dir = "data"
  data.prepare = False  # Prepare when missing; needs no download here.
  data.reset_at_documents = False  # False: memory is carried, as published.
  data.rotate_epochs = False  # Each epoch starts at a random token.
  return data


def _train() -> ml_collections.ConfigDict:
  train = ml_collections.ConfigDict()
  train.num_steps = 1000  # Updates, one for each segment.
  train.batch_size = 16
  train.segment_len = 128
  # Lengths that take turns at random, each in one of so many calls, with a
  # learning rate in proportion to segment_len; () for always segment_len.
  train.segment_lens = ()
  train.mem_len = 128
  train.clamp_len = 0  # 0: none, as everywhere in training.
  train.same_length = False
  train.loss_on = "all"  # all | recent_half: which targets of a segment
  # Added to the loss of each token: so much times the mean square of the states
  # that enter the softmax, and of how much they differ from the token before
  # (AR and TAR, Merity et al. 2017).
  train.activation_penalty = 0.0
  train.temporal_activation_penalty = 0.0
  train.segments_per_call = 10  # Updates in one compiled call.
  train.accumulation_steps = 1  # The lanes of an update are read in parts.
  train.optimizer = "adam"  # adam | adamw | lamb | sgd
  train.learning_rate = 2.5e-4
  train.min_learning_rate_ratio = 0.0  # Where cosine ends.
  train.schedule = "cosine"  # cosine | inverse_sqrt | constant
  # Update k of W warm-up steps uses (k+1)/W of the rate ("next_step"), k/W
  # ("tensorflow"), or k/W but all of it at k=0, with a cosine that counts from
  # 0 and not from W ("pytorch"); facts 4.1.
  train.schedule_convention = "next_step"
  train.warmup_steps = 0
  train.clip_norm = 0.25  # Global L2 norm of the gradient; 0: no clipping.
  train.weight_decay = 0.0  # adamw and lamb, on matrices only.
  train.adam_b1 = 0.9
  train.adam_b2 = 0.999
  train.adam_epsilon = 1e-8
  # An average of the parameters, for `eval.parameters`: a moving one, or the
  # mean of all since a step, or since so many validation losses in a row were
  # above the best one before them (NT-ASGD, Merity et al. 2017); 0: none.
  train.ema_decay = 0.0
  train.asgd_start_step = 0
  train.asgd_patience = 0
  train.log_every_steps = 50
  train.eval_every_steps = 500  # On the validation split; 0: never.
  train.eval_mem_len = train.get_oneway_ref("mem_len")  # For those evaluations.
  # With each, what attention to memory there is and the loss without any.
  train.log_memory_use = False
  train.finish_with = ()  # Modes to run at the end, e.g. ("eval", "generate").
  return train


def _divergence() -> ml_collections.ConfigDict:
  divergence = ml_collections.ConfigDict()
  # stop | skip: go back and leave out what was read since | lower_rate: go
  # back and go on at a lower rate; docs/checkpoints.md.
  divergence.action = "stop"
  # So far above its lowest the loss is lost: spikes that pass are smaller or
  # shorter, and runs that lost this much do not come back. 0: only a loss that
  # is no number.
  divergence.spike_nats = 2.0
  divergence.window = 100  # Updates of whose losses the median is taken.
  divergence.tries = 3  # At one place; then the run stops.
  divergence.rate_factor = 0.5  # For "lower_rate", each time.
  return divergence


def _eval() -> ml_collections.ConfigDict:
  evaluation = ml_collections.ConfigDict()
  evaluation.split = "test"  # train | valid | test
  evaluation.batch_size = 8
  evaluation.segment_len = 128
  evaluation.mem_len = (128,)  # A length, or several to compare.
  evaluation.clamp_len = 0
  evaluation.same_length = False
  evaluation.warmup_len = -1  # Unscored tokens before a lane; -1: mem_len.
  # What is remembered: hidden states, or their keys and values, which need
  # not be projected again while parameters are fixed; docs/memory.md.
  evaluation.memory = "auto"  # auto | hidden | key_value: the same numbers
  evaluation.segments_per_call = 8
  evaluation.parameters = "raw"  # raw | ema | asgd
  evaluation.checkpoint = "latest"  # latest | best | a step
  evaluation.dynamic = _dynamic()
  evaluation.cache = _cache()
  return evaluation


def _dynamic() -> ml_collections.ConfigDict:
  """Dynamic evaluation: docs/dynamic.md."""
  dynamic = ml_collections.ConfigDict()
  dynamic.kind = "none"  # none | sgd | rms: by the size of training gradients
  # Each lane adapts parameters of its own, so it needs B copies of them, or
  # all adapt the same ones and learn from each other's text.
  dynamic.lanes = "apart"  # apart | shared
  # One, or on valid several to choose from; "sgd" wants hundreds of times more.
  dynamic.learning_rate = (1e-4,)
  dynamic.decay = (0.02,)  # Towards what was trained, a segment; likewise.
  # Added to the size of training gradients, "rms": rare words have nearly none.
  dynamic.epsilon = 1e-3
  dynamic.statistics_segments = 50  # For that size, in each lane; rms.
  return dynamic


def _cache() -> ml_collections.ConfigDict:
  """The neural cache: docs/dynamic.md."""
  cache = ml_collections.ConfigDict()
  cache.size = 0  # Tokens; 0: none.
  cache.flatness = (0.1,)  # theta; one, or on valid several to choose from.
  cache.share = (0.1,)  # lambda, of the mixture; likewise.
  return cache


def _checkpoint() -> ml_collections.ConfigDict:
  checkpoint = ml_collections.ConfigDict()
  checkpoint.every_steps = 500
  checkpoint.every_minutes = 30.0  # Also by the clock; 0: by steps only.
  checkpoint.keep_latest = 2
  checkpoint.keep_best = 1  # By validation loss.
  return checkpoint


def _mesh() -> ml_collections.ConfigDict:
  mesh = ml_collections.ConfigDict()
  mesh.data = -1  # Lanes are split over data and fsdp; -1: all that remain.
  mesh.fsdp = 1  # Parameters and optimizer are split over it.
  mesh.tensor = 1  # Heads, feed-forward and vocabulary are split over it.
  return mesh


def _generate() -> ml_collections.ConfigDict:
  generate = ml_collections.ConfigDict()
  generate.prompt = "The"
  generate.prompt_file = ""  # Read instead of `prompt`; -: standard input.
  generate.num_tokens = 200
  generate.num_samples = 1  # In one batch.
  generate.temperature = 1.0  # 0: always the likeliest token.
  generate.top_k = 40  # 0: all of the vocabulary.
  generate.top_p = 1.0  # Of these, the likeliest that reach it together.
  # Against repetition: recent tokens' probabilities are divided by it (1: not),
  # and so many tokens in a row do not come again (0: no such rule).
  generate.repetition_penalty = 1.0
  generate.no_repeat_ngram = 0
  generate.repetition_window = 256  # How many tokens are recent.
  generate.stop = ""  # A sample ends with this text.
  generate.tokens_per_call = 16  # Drawn in one compiled call, then printed.
  generate.segment_len = 128  # The prompt is read in segments.
  generate.mem_len = 512
  return generate


def _score() -> ml_collections.ConfigDict:
  score = ml_collections.ConfigDict()
  score.file = ""  # A text or a JSON object a line; -: standard input.
  score.memory = "fresh"  # fresh | carry: go on from the text before
  score.prefix = "\n"  # Read before each text; not scored.
  score.top_k = 0  # So many likeliest tokens for each position.
  score.batch_size = 8
  score.segment_len = 128
  score.mem_len = 512
  return score


def _analysis() -> ml_collections.ConfigDict:
  analysis = ml_collections.ConfigDict()
  # The ablation's rows: recurrence, encoding and loss, as in the defaults.
  analysis.rows = (
    "recurrent-relative-all",
    "recurrent-shaw-all",
    "recurrent-absolute-all",
    "segment-relative-all",
    "segment-shaw-all",
    "segment-absolute-all",
  )
  analysis.attention_lens = (32, 64, 128, 256)  # At which each is evaluated.
  analysis.equal_memory = False  # Longer segments for rows that need less.
  # Relative effective context length.
  analysis.group = ()  # Workdirs to compare with; each has its config.json.
  analysis.context = "tokens"  # or attention: c keys in each layer, not in all
  analysis.context_start = 16
  analysis.context_step = 16
  analysis.context_stop = 256
  analysis.fractions = (0.1, 0.5, 1.0)  # r: of the tokens, the hardest.
  analysis.threshold = 0.01  # Of the relative gain.
  analysis.num_tokens = 2000  # That are scored for RECL; seen, for attention.
  # Attention lengths at which evaluation is timed; the paper's.
  analysis.speed_lens = (800, 1800, 2800, 3800)
  analysis.text = ""  # To show attention on; "": the start of the split.
  return analysis
