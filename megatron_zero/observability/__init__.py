"""What a run says of itself: log lines, timers, memory, FLOPs and metrics. Observes; decides nothing."""
