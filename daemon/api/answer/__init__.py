"""One answer from its prepared prompt to its last event: jobs, choices, streams."""
