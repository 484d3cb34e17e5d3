"""What any implementation of Transformer-XL must do; start at `adapters`.

`checks` are the properties, `test_implementations` puts implementations through
them, `test_mutants` shows that each can fail, and `test_oracle` compares the
package's numbers with those of `tests.oracle`.
"""
