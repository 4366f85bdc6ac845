"""The error of a predictor's name."""


class PredictorError(ValueError):
    """No such predictor; the message lists the known ones."""
