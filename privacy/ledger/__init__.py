"""What each client has spent, and the bounds that it is counted with."""
