"""What a state is made of: slots, logs, and what a save collects of them."""
