"""The nodes of the graph: functions over one state."""
