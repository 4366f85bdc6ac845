"""Text and tokens: the tokenizer, bytes of tokens, offsets and log-probabilities."""
