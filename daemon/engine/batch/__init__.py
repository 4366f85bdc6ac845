"""A batch as the device sees it: slots, columns, and their way to the device and back."""
