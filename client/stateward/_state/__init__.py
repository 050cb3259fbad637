"""The parts of a state: slots, logs, and the changes that are not saved yet."""
