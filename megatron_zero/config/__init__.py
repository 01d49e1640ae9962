"""Every knob of a run, once: typed sections, argparse, the DeepSpeed JSON, precedence, validation. Stdlib only."""
