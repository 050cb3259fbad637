"""Files that commands read and write: recorded runs, backups, trajectories."""
