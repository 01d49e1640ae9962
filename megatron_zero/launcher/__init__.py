"""Start a training script on this machine: command line -> plan -> torchrun. Stdlib only; torch is not imported.

torchrun (torch's elastic agent) supervises the processes; this package decides how many there are, on which GPUs,
over which port, and passes signals and the exit code on. Run it as `mz launch` or `python -m megatron_zero.launcher`.
"""
