"""The README's clients against a real API process."""
