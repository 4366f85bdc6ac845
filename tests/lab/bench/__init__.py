"""The load generator, against an endpoint that the tests script."""
