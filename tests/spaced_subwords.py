"""Subwords that have a space before the first word of a text, as Llama's."""

import json

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import processors
from tokenizers import trainers

KINDS = ("first", "legacy")
_SPECIAL = ["<unk>", "<s>", "</s>"]
_NEWLINE = "<0x0A>"
_SPACE = "\u2581"
_TEXT = "Hello world the quick brown fox jumps over the lazy dog. help me"


def make(kind: str, *, starts: bool = True) -> tokenizers.Tokenizer:
  """A tokenizer of a few symbols, the byte of a newline among them.

  Args:
    kind: "first" for a space before the first word, not behind a special token;
      "legacy" for one before each part between special tokens.
    starts: `<s>` is put in front of a text.
  """
  made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
  made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
  trainer = trainers.BpeTrainer(
    vocab_size=200, special_tokens=[*_SPECIAL, _NEWLINE], show_progress=False
  )
  made.train_from_iterator([_TEXT] * 9, trainer)
  fields = json.loads(made.to_str())
  fields["added_tokens"] = fields["added_tokens"][: len(_SPECIAL)]
  made = tokenizers.Tokenizer.from_str(json.dumps(fields))
  if kind == "legacy":
    made.pre_tokenizer = None
    made.normalizer = normalizers.Sequence(
      [normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)]
    )
  parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback()]
  parts += [decoders.Fuse(), decoders.Strip(" ", 1, 0)]
  made.decoder = decoders.Sequence(parts)
  if starts:
    made.post_processor = processors.TemplateProcessing(
      single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
  return made
