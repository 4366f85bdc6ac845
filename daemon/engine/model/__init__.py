"""A loaded model and the backend that computes it: the room that knows both CPU and GPU."""
