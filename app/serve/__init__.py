"""The commands that serve until they are stopped, and a load test: web chat, MCP server, OpenAI-compatible endpoint.

Start at `serve` or `ui`.
"""
