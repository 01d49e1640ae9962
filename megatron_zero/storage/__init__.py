"""Where bytes rest: page-locked host buffers (files on NVMe come with a later step)."""
