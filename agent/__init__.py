"""The LangGraph agent: link, plan, generate, check, execute, refine, answer."""
