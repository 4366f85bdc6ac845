"""`GET /openapi.json`: the API's description, made of the types that requests and answers have."""
