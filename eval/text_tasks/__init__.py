"""Accuracy on tasks that are no SQL: HumanEval's functions and GSM8K's problems, with what each decoder needed for them.

Start at `tasks`.
"""
