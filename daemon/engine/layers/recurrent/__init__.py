"""Recurrent layers: what each computes of a flat row of tokens and the states of its sequences."""
