"""Small checkpoints that the tools of their formats wrote, and what made them."""
