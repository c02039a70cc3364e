"""Conformance suites and fakes for third-party meters and signals."""
