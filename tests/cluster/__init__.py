"""Tests of workers that Ray places on the nodes of a cluster."""
