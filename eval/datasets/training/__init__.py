"""Training data for the agent's steps, from the training parts of Spider, Spider-Syn and BIRD.

Start at `build` (groups and manifest) -> `items` -> `examples` (a question as pairs), `second_questions` ->
`eval.datasets.variants` (schemas that never repeat) -> `eval.datasets.golds` (SQL in one style, verified). Prompts are not
written here but by `agent.graph.prompt_slots` and the compact profile, as they are for a user.
"""
