"""The record of every Core event: enough to replay an incident exactly, never text."""
