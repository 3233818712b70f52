"""The LangGraph agent, which answers a question: link, plan, generate, check, execute, refine, answer.

Start at `graph/graph.py` (the nodes and their order). `assistant` is the Python API; `assemble` joins a model to a
database.
"""
