"""Progress and tables on the terminal."""
