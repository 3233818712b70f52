"""How the agent reports its work: typed events, a record of each step, the audit log, OpenTelemetry spans.

Start at `events`, then read `step_record`.
"""
