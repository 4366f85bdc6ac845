"""The pure state machine: events in, actions out. No clock, no random source, no I/O."""
