"""Jobs in virtual time: the operator's own planner, without devices, processes or a clock."""
