"""What a server tells about itself: the protocol, and the instruments for Prometheus and OpenTelemetry."""
