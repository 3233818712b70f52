"""The agent's small database, for tests of what stands in front of the agent."""

from tests.agent.conftest import database, singers, talk

__all__ = ["database", "singers", "talk"]
