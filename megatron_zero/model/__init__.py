"""GPT as ordinary nn.Modules. Knows nothing of ZeRO, schedules or optimizers."""
