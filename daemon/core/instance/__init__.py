"""One instance: its scheduler, its steps in flight, its worker's state."""
