"""The `mz` console script: one file per subcommand, each thin. Importing this package imports no torch."""
