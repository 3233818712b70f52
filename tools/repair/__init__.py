"""Rules for plans and SQL, in one table (`tools.repair.rules`), and the repair of SQL that does not run.

Start at `rules`.
"""
