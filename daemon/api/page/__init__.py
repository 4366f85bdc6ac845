"""`GET /`: a page to chat with the model in a browser."""
