"""Measuring: each capability next to the bare client or engine, in the same run, so that the ratios mean something."""
