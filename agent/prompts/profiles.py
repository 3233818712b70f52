"""Prompt profiles say how a step is put to a model and how its answer is read. Each is one file; `PROFILES` lists them.

Start at `profile`; `compact` is what the embedded model is trained on.
"""

from collections.abc import Mapping

from agent.prompts.chat import Chat
from agent.prompts.compact import Compact
from agent.prompts.profile import ModelStep, Profile, UnknownProfile

PROFILES: Mapping[str, Profile] = {"compact": Compact(), "chat": Chat()}


def load_profile(name: str) -> Profile:
    """Load a registered profile. Raises UnknownProfile."""
    if name not in PROFILES:
        raise UnknownProfile(f"unknown profile {name!r}; choose one of: {', '.join(PROFILES)}")
    return PROFILES[name]


__all__ = ["PROFILES", "ModelStep", "Profile", "UnknownProfile", "load_profile"]
