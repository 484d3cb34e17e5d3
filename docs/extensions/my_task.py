"""Reversal: a string of letters, and the string from its end."""

from transformer_xl import extend

LETTERS = "abcdefgh"


@extend.task("reversal")
class Reversal(extend.Task):
  """Reverses a string."""

  options = {
    "max_distance": extend.Option(16, 2, 1000, "longest distance of an answer")
  }

  @staticmethod
  def write(num_tokens, generator, *, max_distance):
    def document():
      length = extend.log_uniform(generator, 1, max_distance // 2)
      text = [str(letter) for letter in generator.choice([*LETTERS], length)]
      words = [*text, ">", *reversed(text)]
      # The first answer is two words after its letter, the next four.
      answers = [(length + 1 + i, 2 * i + 2) for i in range(length)]
      return extend.Document(words, answers)

    return extend.fill(num_tokens, document)
