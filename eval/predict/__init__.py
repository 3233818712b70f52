"""Questions asked and answers recorded: one by one, several at once, whole chats, on a cluster.

Start at `agent_predict`.
"""
