"""The scripts of examples/ against a real API process."""
