"""The power limit of an instance's card: pure decisions by role and by measurements."""
