"""Values of the Core: events come in, actions go out, a snapshot shows it; and limits."""
