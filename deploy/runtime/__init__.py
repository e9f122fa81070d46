"""How processes are started, patched and ended."""
