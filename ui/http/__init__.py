"""What stands between a server and those who ask it: middleware, tokens and sessions."""
