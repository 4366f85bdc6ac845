"""What is compiled for GPUs that need not be there."""
