"""Errors of the predictor process."""


class EncoderError(Exception):
    """There is no usable sentence encoder; the message says what to install."""
