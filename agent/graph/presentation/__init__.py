"""Makes a result explain itself after the query has run: columns that it lacks, names beside ids, headings, one sentence.

Start at `present`. The model's SQL and its own rows stay as they are; what is made here is what people are shown.
"""
