"""What is told and recorded of the work: typed events, the record of each step, the audit log, OpenTelemetry's spans.

Start at `events`, then `step_record`.
"""
