"""How long answers will be. Pure: randomness is an argument."""
