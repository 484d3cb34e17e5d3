"""The configuration of an earlier run: --config=saved:WORKDIR.

Every mode but train works on it alone; flags can override its fields.
"""

from transformer_xl.config import load

get_config = load.saved
