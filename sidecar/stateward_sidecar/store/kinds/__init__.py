"""What an entry of each kind implies, in one file for each kind: its event, its rows, what Verify makes of it."""
