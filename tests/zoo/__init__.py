"""Every causal model type of the installed transformers, tiny: served equal, or refused."""
