"""Faults at random, at every process, under load: no text is lost, doubled or changed."""
