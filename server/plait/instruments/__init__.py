"""Metrics and traces: the interface, and the instruments for Prometheus and OpenTelemetry."""
