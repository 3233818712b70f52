"""Errors about models that a user can cause; each message is one line that says what to do."""


class ModelError(Exception):
    """A model cannot be used."""


class ModelUnavailable(ModelError):
    """A model's files are missing, unreachable or damaged, or there is no room for them."""


class UnsupportedModel(ModelError):
    """A model's files are there, but its architecture, format or tokenizer is not one that this code reads."""
