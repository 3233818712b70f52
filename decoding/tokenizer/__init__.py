"""Turns text into token ids and back, and fills chat templates.

Start at `tokenizer`.
"""
