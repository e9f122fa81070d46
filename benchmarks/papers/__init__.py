"""The papers' claims and tables of docs, a module for what is measured in the same way."""
