"""The default of every field, which the other experiments start from.

The fields are declared in `transformer_xl/config/`; `--help` lists them. This
model is a placeholder: it is not meant to be trained.
"""

from transformer_xl.config import load

get_config = load.default
