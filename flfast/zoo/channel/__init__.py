"""More of what happens between a client's upload and the server's step."""
