"""The configuration that a run saved: --config=experiments/saved.py:WORKDIR.

Every mode but train works on it alone, and takes further overrides.
"""

from transformer_xl.config import saved

get_config = saved.get_config
