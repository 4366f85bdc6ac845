"""Copies of KV blocks between a device and host memory."""
