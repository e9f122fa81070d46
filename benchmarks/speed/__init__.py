"""What things cost: time, memory and bytes."""
