"""The schedule of a thread: effects that run at a time, at intervals, by a cron rule, or one after the other."""
