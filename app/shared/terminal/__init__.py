"""What is particular to terminals: tables that fit their width, and text that cannot steer them."""
