"""`GET /openapi.json`: the API's description, made from the types of requests and answers."""
