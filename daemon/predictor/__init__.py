"""The predictor process: it reads prompts, predicts how long answers will be, and learns."""
