"""What the commands besides running do: replay, compare, export, doctor."""
