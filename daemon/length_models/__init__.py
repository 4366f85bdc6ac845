"""Predictors of answers' lengths. Pure: randomness is an argument."""
