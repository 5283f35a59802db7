"""Other people's libraries, imported only when asked for."""

from spiritlevel.integrations import loggers, peft

__all__ = ["loggers", "peft"]
