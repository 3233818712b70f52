"""Commands that answer others until they are stopped: web chat, MCP server, OpenAI-compatible endpoint, and a load test for it.

Start at `serve` or `ui`.
"""
