"""What goes into a prompt: its slots, the profiles that word them, and knowledge beyond the schema.

Start at `slots`; `predicted_text` predicts what the model will answer.
"""
