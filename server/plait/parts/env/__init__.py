"""Variables of threads, users and the app, which are encrypted in the store."""
