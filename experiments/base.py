"""The defaults that the other experiments start from.

`transformer_xl/config/defaults.py` has every field with its remark. The tests
instantiate every file here.
"""

from transformer_xl.config import defaults

get_config = defaults.get_config
