"""The layers of a decoder, whichever device computes them."""
