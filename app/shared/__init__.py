"""What several commands share: options, exit codes, printing, opening databases, the audit log.

Start at `options`: a group of options becomes a dataclass, and commands take the dataclass.
"""
