"""Parses `name=value`, as a person types it. What the value means is decided by `decoding.methods.registry.option_value`, or by
the caller.
"""


def name_and_value(text: str) -> tuple[str, str]:
    """The name and the value, without white space around them. Raises ValueError, whose one line says what is wrong."""
    name, found, value = (part.strip() for part in text.partition("="))
    if not found or not name:
        raise ValueError(f"{text!r} is not of the form name=value")
    return name, value
