"""Numbers, and the pictures made of them, with where the numbers come from."""
