"""A running job's figures for monitoring systems: Prometheus and OpenTelemetry."""
