"""The archive: what makes a thread outlive its machine. Ships journals, attaches, hydrates, collects garbage."""
