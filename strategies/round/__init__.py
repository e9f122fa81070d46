"""What every scheme does in a round: select, send, collect, aggregate."""
