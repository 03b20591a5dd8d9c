"""What a thread does later: effects at a time, at intervals, by a cron rule, or one after the other."""
