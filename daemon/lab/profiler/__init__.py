"""`llmd profile`: measures this machine's steps and copies, and fits a profile to them."""
