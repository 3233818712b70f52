"""Variants of questions and schemas."""
