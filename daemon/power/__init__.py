"""How much power an instance's card may draw: pure decisions by role and by what was measured."""
