"""`generate` of transformers, on an export, remembers what ours remembers."""

import pytest

import transformer_xl
from tests.importers import in_pytorch

torch = in_pytorch.torch


@pytest.mark.parametrize("name", in_pytorch.MODELS)
def test_generate_continues_as_ours_does(exported, name):
  ours = transformer_xl.load(exported(name))
  model = in_pytorch.loaded(exported(name))
  text = in_pytorch.text_for(ours, 3)
  ids = torch.tensor(ours.vocabulary.encode(text).tolist())[None]
  found = model.generate(ids, max_new_tokens=12, do_sample=False)
  expected = ours.generate(text, num_tokens=12, temperature=0.0).tokens
  assert found[0, ids.shape[1] :].tolist() == expected.tolist()


@torch.no_grad()
def test_memory_continues_a_text(exported):
  """Cut anywhere, if the window makes segments indifferent."""
  model = in_pytorch.loaded(exported("narrower clusters, window of PyTorch"))
  ids = torch.arange(40)[None] % 11
  whole = model(ids).logits
  first = model(ids[:, :13])
  assert first.mems.num_read == 13
  assert first.mems.layers[0][0].shape[1] == 7
  second = model(ids[:, 13:], mems=first.mems).logits
  torch.testing.assert_close(
    torch.cat([first.logits, second], 1),
    whole,
    atol=in_pytorch.TOLERANCE,
    rtol=0,
  )


def test_beams_have_their_own_memories(exported):
  model = in_pytorch.loaded(exported("narrower clusters, window of PyTorch"))
  ids = torch.arange(20)[None] % 11
  options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
  found = model.generate(ids, **options)
  # The window makes both equal: without memory the text is read again.
  assert (
    found.tolist() == model.generate(ids, use_cache=False, **options).tolist()
  )


@pytest.mark.parametrize(
  "name",
  [
    "defaults",
    "narrower clusters, window of PyTorch",
    in_pytorch.ROTATING,
    in_pytorch.SLOPING,
  ],
)
@pytest.mark.parametrize("negative", [[[5, 3, 2, 4, 1]], None])
@torch.no_grad()
def test_guidance_has_a_memory_of_the_other_text(exported, name, negative):
  fields = {} if "window" in name else in_pytorch.LONG
  model = in_pytorch.loaded(exported(name), **fields)
  text = torch.arange(17)[None] % 7
  other = text[:, -1:] if negative is None else torch.tensor(negative)
  found = model.generate(
    text,
    guidance_scale=2.0,
    negative_prompt_ids=None if negative is None else other,
    max_new_tokens=8,
    do_sample=False,
    output_scores=True,
    return_dict_in_generate=True,
  )
  for step in found.scores:
    wanted = model(text, use_cache=False).logits[:, -1]
    unwanted = model(other, use_cache=False).logits[:, -1]
    expected = unwanted + 2.0 * (wanted - unwanted)
    torch.testing.assert_close(
      step, expected, atol=in_pytorch.TOLERANCE, rtol=0
    )
    token = expected.argmax(-1, keepdim=True)
    text = torch.cat([text, token], 1)
    other = torch.cat([other, token], 1)
  assert found.sequences.tolist() == text.tolist()


def test_guidance_without_memory_reads_all_again(exported):
  model = in_pytorch.loaded(exported("no memory"))
  options = {"guidance_scale": 2.0, "max_new_tokens": 4, "do_sample": False}
  ids = torch.arange(9)[None] % 7
  with pytest.raises(ValueError, match="use_cache=False"):
    model.generate(ids, **options)
  assert model.generate(ids, use_cache=False, **options).shape == (1, 13)


# The second call's tokens are fewer, as many and more than the first one's.
@pytest.mark.parametrize("cut", [25, 20, 6])
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"use_cache": False},
    {"num_beams": 3},
    {"num_beams": 3, "use_cache": False},
    {"num_return_sequences": 3, "do_sample": True},
  ],
  ids=str,
)
@torch.no_grad()
def test_generate_continues_from_a_memory(exported, cut, options):
  model = in_pytorch.loaded(exported("defaults"), **in_pytorch.LONG)
  ids = torch.stack([torch.arange(40) % 7, torch.arange(40) % 6])
  first = model(ids[:, :cut])
  results = []
  for given in ({"inputs": ids}, {"inputs": ids[:, cut:], "mems": first.mems}):
    torch.manual_seed(0)
    result = model.generate(
      **given,
      **{"do_sample": False} | options,
      max_new_tokens=8,
      output_scores=True,
      return_dict_in_generate=True,
    )
    length = given["inputs"].shape[1]
    results.append((result.sequences[:, length:], torch.stack(result.scores)))
  torch.testing.assert_close(
    results[1], results[0], atol=in_pytorch.TOLERANCE, rtol=0
  )
  assert first.mems.num_read == cut
  # Without the memory these tokens have another continuation.
  alone = model.generate(
    ids[:, cut:],
    max_new_tokens=1,
    output_scores=True,
    return_dict_in_generate=True,
  )
  rows = results[0][1][0, :: len(results[0][0]) // 2]
  if "num_beams" not in options:
    assert not torch.allclose(
      alone.scores[0], rows, atol=100 * in_pytorch.TOLERANCE
    )


@torch.no_grad()
def test_what_generate_remembers_can_be_continued(exported):
  model = in_pytorch.loaded(exported("defaults"), **in_pytorch.LONG)
  ids = torch.arange(20)[None] % 7
  options = {"do_sample": False, "return_dict_in_generate": True}
  whole = model.generate(ids, max_new_tokens=9, **options)
  part = model.generate(ids, max_new_tokens=4, **options)
  assert part.cache.num_read == 23  # Its last token was not read.
  rest = model.generate(
    part.sequences[:, 23:], mems=part.cache, max_new_tokens=5, **options
  )
  assert rest.sequences[0].tolist() == whole.sequences[0, 23:].tolist()
