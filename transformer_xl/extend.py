"""What a file of your own may import to add something to this package.

    from transformer_xl import extend

    @extend.mixer("ema")
    class MovingAverage(extend.Mixer):
      ...

docs/extend.md has a whole example of each kind. Name the file with
`--extensions=my_memory.py`, or `extensions=["my_memory.py"]` in Python.

A kind is a decorator that registers a class under a name, and a class to
inherit from:

    mixer          Mixer        what lets a token see the tokens before it
    encoding       Encoding     how a model represents the order of tokens
    optimizer      Optimizer    what turns gradients into updates
    schedule       Schedule     the learning rate after warm-up
    task           Task         a synthetic text whose answers are known
    tracker        Tracker      where metrics go besides the log

Fields of the configuration that the new thing alone has are declared in its
class `Fields`, which inherits from `Fields` here, with `field` and `Rule`.
"""

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import fields
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.data_prep.synthetic import task as task_lib
from transformer_xl.model import dropout
from transformer_xl.model import layers
from transformer_xl.model import layers_reader
from transformer_xl.model import parameters
from transformer_xl.model import relative_attention as attention_lib
from transformer_xl.model import scores
from transformer_xl.model import visibility
from transformer_xl.model.encodings import distances
from transformer_xl.model.encodings import encoding as encoding_lib
from transformer_xl.model.kernels import dense
from transformer_xl.model.mixers import mixer as mixer_lib
from transformer_xl.model.mixers import recurrent
from transformer_xl.training.optimizers import optimizer as optimizer_lib
from transformer_xl.training.schedules import schedule as schedule_lib
from transformer_xl.workdir import tracker as tracker_lib

UserError = errors.UserError
PyTree = shapes.PyTree
# Fields.
Fields = fields.Group
field = fields.field
Rule = fields.Rule
ModelConfig = schema.ModelConfig
TrainConfig = schema.TrainConfig
# Mixers.
mixer = registry.mixers.register
Mixer = mixer_lib.Mixer
Recurrent = recurrent.Recurrent
Settings = mixer_lib.Settings
Shared = mixer_lib.Shared
Reading = mixer_lib.Reading
Kept = mixer_lib.Kept
Streaming = mixer_lib.Streaming
since_reset = visibility.since_reset
visible_distance = visibility.visible_distance
# What mixers are made of.
Projections = parameters.Projections
project_output = parameters.project_output
dropout_of_states = dropout.of_states
product = dense.times
# Layers without a vocabulary.
Layers = layers.Layers
empty_state = layers.empty_state
init_params = layers.init_params
LayersReader = layers_reader.LayersReader
# Encodings.
encoding = registry.encodings.register
Encoding = encoding_lib.Encoding
DistanceTerms = scores.DistanceTerms
ScoreFactors = scores.ScoreFactors
rotary_angles = distances.rotary_angles
rotated = distances.rotated
# Attention for a model of another library (docs/kernels.md).
relative_attention = attention_lib.relative_attention
AttentionDropout = dropout.AttentionDropout
# Training.
optimizer = registry.optimizers.register
Optimizer = optimizer_lib.Optimizer
scale_by_adam = optimizer_lib.scale_by_adam
decay_weights = optimizer_lib.decay_weights
schedule = registry.schedules.register
Schedule = schedule_lib.Schedule
tracker = registry.trackers.register
Tracker = tracker_lib.Tracker
# Tasks.
task = registry.tasks.register
Task = task_lib.Task
Option = task_lib.Option
Document = task_lib.Document
fill = task_lib.fill
log_uniform = task_lib.log_uniform
FILLER = task_lib.FILLER
