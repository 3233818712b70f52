"""The LangGraph agent, which answers a question: link, plan, generate, check, execute, refine, answer.

Start at `graph.py` (the wiring of the nodes) and `observe/step_record.py` (the table of nodes). `assistant` is the Python API;
`assemble` joins a model to a database.
"""
