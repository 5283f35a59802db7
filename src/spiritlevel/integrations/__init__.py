"""Other people's libraries, imported only when asked for."""
