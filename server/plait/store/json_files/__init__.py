"""A store in a folder of JSON files, which people can read. One process opens it, and has all threads in memory."""
