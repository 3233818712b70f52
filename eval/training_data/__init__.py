"""Training data for the agent's steps, from the training parts of Spider, Spider-Syn and BIRD.

From the outside in: `build` (groups and manifest) -> `examples` (a question as pairs) -> `variants` and `rename` (schemas that
never repeat), `second_questions` (`follow_ups`, `contrasts`), `corrupt` -> `golds` (SQL in one style, verified) ->
`databases`, `sources` (what is read).
Prompts are not written here: `agent.prompt_slots` and the compact profile make them, as they do for a user.
"""
