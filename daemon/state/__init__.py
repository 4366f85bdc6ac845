"""The plain values that the Core, workers and viewers share: requests, sequences, batches."""
