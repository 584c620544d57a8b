"""What lies between a client's local training and the server's step."""
