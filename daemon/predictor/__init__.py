"""The predictor process: it reads prompts, foretells how long answers will be, and learns."""
