"""What the clients do, written once for both: generators that yield calls and get answers, without I/O of their own."""
