"""A store in NATS JetStream."""
