"""What proves Penstock, and what helps you to prove your own: simulation, faults, and a real broker for pytest."""
