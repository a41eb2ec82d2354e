"""What the terminal shows; every function returns something that rich prints."""
