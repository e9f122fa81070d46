"""huggingface_example: A Flower / Hugging Face app."""
