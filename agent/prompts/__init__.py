"""What the model is told: the slots of a prompt, the profiles that word them, and knowledge beyond the schema.

Start at `slots`; `predicted_text` guesses what the model will answer.
"""
