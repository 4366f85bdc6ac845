"""What goes wrong in the predictor process."""


class EncoderError(Exception):
    """There is no usable sentence encoder; the message says what to install."""
