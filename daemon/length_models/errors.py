"""What goes wrong with predictors."""


class PredictorError(ValueError):
    """No such predictor; the message lists those there are."""
