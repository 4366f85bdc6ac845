"""The second driver of the Core: a heap of events and virtual seconds instead of workers."""
