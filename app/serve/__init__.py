"""The commands that serve until they are stopped: web chat, MCP server, OpenAI-compatible endpoint.

Start at `serve` or `ui`.
"""
