"""Runs the lm-evaluation-harness with models of this package.

    python -m transformer_xl.integrations.lm_eval --model transformer_xl \
      --model_args pretrained=runs/quickstart --tasks lambada_openai

All arguments are the harness's own; docs/text.md has those of the model.
"""

import importlib.util

from transformer_xl import command_line
from transformer_xl import errors


def main() -> None:
  """Registers the model, and runs the harness's command."""
  with command_line.one_line():
    if importlib.util.find_spec("lm_eval") is None:
      raise errors.UserError(
        "the lm-evaluation-harness is not installed: "
        f"{errors.install('lm-eval')}"
      )
    # Late: without the harness there is nothing to import.
    from lm_eval import __main__ as harness

    from transformer_xl.integrations import lm_eval_model  # noqa: F401

    harness.cli_evaluate()


if __name__ == "__main__":
  main()
