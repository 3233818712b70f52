"""Errors about models that a user can cause; each message is one line that says what to do."""


class ModelError(Exception):
    """A model cannot be used."""


class ModelUnavailable(ModelError):
    """A model's files are missing, unreachable or damaged, or there is no room for them."""


class UnsupportedModel(ModelError):
    """A model's files are there, but its architecture, format or tokenizer is not one that this code reads."""


def is_want_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, for which torch and threads raise RuntimeError."""
    told = ("Cannot allocate memory", "can't allocate memory", "can't start new thread")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in told)
    )
