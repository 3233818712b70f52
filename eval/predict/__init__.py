"""Asks questions and records the answers: one by one, several at once, whole chats, on a cluster.

Start at `agent_predict`.
"""
